/* SPDX-License-Identifier: MIT
 *
 * conf.h: the settings of `semel run`: one YAML file in, plain typed structs out.
 *
 * Reading: the file becomes a tree and ${NAME} in its values is replaced from the environment (read.c); one table
 * (table.c, and of each source its kind in broker/kinds.c) says of each setting its type, range, default and help;
 * reading, docs/settings.md and `semel init` walk that table. What a consumer promises and allows is not described here
 * once more: those settings are members of core/consumer.h and are checked there.
 *
 * Mistakes: every one is collected, up to SEMEL_CONF_MISTAKES, with its place; none stops the reading of the others
 * unless the file is no YAML at all. A file with a mistake gives no settings.
 *
 * Secrets (passwords, tokens, whatever came from the environment or from a *_file) are not quoted in any text, lie in
 * memory of their own and are wiped by semel__conf_free.
 *
 * Bounds: 1 MiB of text, 16 levels, 20000 nodes, 256 routes. Anchors, aliases, tags, several documents and keys that
 * are no text have no meaning here and are refused where they stand, so nothing is multiplied (a "billion laughs").
 *
 * Invariants: what was read is complete and checked: who reads a struct semel_conf checks nothing again. It is only
 * read from then on, by any number of threads. Strings end with a NUL that is not counted. What is not given, and has
 * no default, is {NULL, 0}.
 */
#ifndef SEMEL_CONF_CONF_H
#define SEMEL_CONF_CONF_H

#include "base/log.h"
#include "base/str.h"
#include "broker/kind.h"
#include "core/extract.h"
#include "core/keys.h"
#include "core/policy.h"
#include "core/relay.h"

#define SEMEL_CONF_TEXT_MAX ((size_t)1 << 20)
#define SEMEL_CONF_MISTAKES 50
#define SEMEL_CONF_ROUTES_MAX 256

/* ---- where messages come from ---- */

struct semel_source {
    const struct semel_broker_kind *kind;
    void *options; /* of its driver */
};

/* ---- what is done with them ---- */

enum semel_do_kind { SEMEL_DO_SQL, SEMEL_DO_HTTP, SEMEL_DO_EXEC, SEMEL_DO_PULL };

struct semel_conf_sql {
    struct semel_str statement;
    bool set;
};

struct semel_conf_http {
    struct semel_str url;
    int64_t timeout_us;
    int64_t concurrency;
    bool idempotent;
    struct semel_setting_list transient; /* of 5xx, three digits each: those after which nothing was done */
    struct semel_setting_pairs headers;
    struct semel_str reconcile; /* a URL; not given: a person decides */
    bool plain;                 /* another host is called without TLS, and that is meant */
    struct semel_setting_tls tls;
};

struct semel_conf_exec {
    struct semel_setting_list argv;
    struct semel_str program; /* the file that argv[0] names */
    int64_t timeout_us;
    int64_t concurrency;
    bool idempotent;
    struct semel_setting_pairs env;
    struct semel_setting_list reconcile; /* an argument vector; none: a person decides */
    struct semel_str reconcile_program;
};

struct semel_conf_pull {
    struct semel_setting_server server;
    struct semel_str path;
    bool idempotent;
    int64_t lease_max_us; /* the longest that a worker may ask for */
};

struct semel_do {
    enum semel_do_kind kind;
    union {
        struct semel_conf_sql sql;
        struct semel_conf_http http;
        struct semel_conf_exec exec;
        struct semel_conf_pull pull;
    } u;
};

/* ---- a route ---- */

enum semel_guarantee { SEMEL_GUARANTEE_ATOMIC, SEMEL_GUARANTEE_GUARDED, SEMEL_GUARANTEE_BOUNDED };
enum semel_order_rests { SEMEL_ORDER_RESTS_NONE, SEMEL_ORDER_RESTS_SOURCE, SEMEL_ORDER_RESTS_VERSIONS };

#define SEMEL_CHECKLIST_MAP(X)    \
    X(KEY, "key")                 \
    X(BUSINESS, "business_key")   \
    X(CONNECTION, "connection")   \
    X(STORE, "store")             \
    X(TRANSACTION, "transaction") \
    X(RETENTION, "retention")     \
    X(OUTSIDE, "outside_calls")   \
    X(ORDER, "order")             \
    X(FAILURES, "failures")

enum semel_checklist {
#define X(name, text) SEMEL_CHECKLIST_##name,
    SEMEL_CHECKLIST_MAP(X)
#undef X
        SEMEL_CHECKLIST_COUNT
};

/* What a route promises, computed and never set. */
struct semel_promise {
    enum semel_guarantee guarantee;
    struct semel_guarantee_text label; /* in words: "ATOMIC for 45 days" (core/policy.h) */
    struct semel_str why;              /* the label in a sentence */
    enum semel_order_rests order;
    int64_t horizon_us; /* SEMEL_NONE: for ever */
    struct semel_str answers[SEMEL_CHECKLIST_COUNT];
};

struct semel_conf_breaker {
    int64_t failures;
    int64_t first_us, ceiling_us;
};

struct semel_route {
    struct semel_str name; /* the consumer */
    struct semel_source from;
    struct semel_rules rules;
    struct semel_setting_list values;
    struct semel_do handler;
    struct semel_policy policy;
    struct semel_str settings;    /* what was said of the policy, as semel__consumer_save wants it */
    struct semel_horizon horizon; /* broker_us is SEMEL_NONE: the source keeps for ever */
    int64_t batch, workers;
    int64_t unknown_max; /* rows of this state at which nothing new is taken */
    struct semel_conf_breaker breaker;
    struct semel_promise promise;
};

/* ---- an outbox, and its relay ---- */

#define SEMEL_CONF_OUTBOXES_MAX 16

struct semel_conf_outbox {
    struct semel_str name;
    struct semel_relay_table table; /* its name is not given: the outbox of the store */
    struct semel_source to;         /* a sink: its options begin with struct semel_sink_options */
    struct semel_str connection;    /* who can read events on the network, as a sentence */
    int64_t keep_us;                /* confirmed events; 0: they are deleted */
    int64_t retry_max, first_us, ceiling_us;
    int64_t timeout_us, lease_us; /* of one call to the sink; of the relay, which outlasts it */
    int64_t in_flight;            /* 0: as the sink can; 1: one event of an aggregate at a time */
    int64_t batch;                /* events per round, about */
    bool notify;                  /* the relay listens for notifications, besides polling */
};

/* ---- a gateway ---- */

#define SEMEL_CONF_GATEWAYS_MAX 16
#define SEMEL_CONF_GUARDS_MAX 64

enum semel_conf_key { SEMEL_CONF_KEY_OPTIONAL, SEMEL_CONF_KEY_REQUIRED, SEMEL_CONF_KEY_OFF };
enum semel_conf_key_scope { SEMEL_CONF_SCOPE_CALLER, SEMEL_CONF_SCOPE_ENDPOINT };
enum semel_conf_when_down { SEMEL_CONF_DOWN_REFUSE, SEMEL_CONF_DOWN_PASS };

/* What is guarded, and how: the first that matches a request counts. */
struct semel_conf_guard {
    struct semel_str match;
    enum semel_conf_key key;
    struct semel_str key_header, key_pointer; /* the pointer, where it is given */
    enum semel_conf_key_scope key_scope;
    bool anonymous, store_body;
    enum semel_conf_when_down when_down;
    struct semel_setting_list ignore, headers;
    struct semel_setting_pairs outcomes_said;
    const struct semel_key_rule *outcomes; /* the same, as core reads it */
    size_t n_outcomes;
    enum semel_on_unknown on_unknown;
    struct semel_str reconcile;
    int64_t settle_us; /* 0: twice the upstream's time-out */
    int64_t wait_us, answer_us, keep_us;
    int64_t waiters, body_max, answer_max, held_max;
};

struct semel_conf_upstream {
    struct semel_str url;
    int64_t timeout_us, connect_us;
    bool finishes, plain;
    const char *ca_file;
};

/* Who sends a request: one of header, api_key and certificate; none: nobody is known. */
struct semel_conf_caller {
    struct semel_str header, api_key;
    bool certificate;
    struct semel_setting_list trusted_from;
    struct semel_str check; /* a URL; not given: not asked */
};

struct semel_conf_gateway {
    struct semel_str name;
    struct semel_setting_server server; /* its address, plain and tls */
    struct semel_conf_upstream upstream;
    struct semel_conf_caller caller;
    struct semel_setting_list trusted, cors;
    struct semel_conf_guard *guard;
    size_t n_guard;
    int64_t threads, lease_us, key_min, guarded_max;
    enum semel_guarantee guarantee; /* computed: ATOMIC or GUARDED */
};

/* ---- all of it ---- */

enum semel_conf_store { SEMEL_CONF_STORE_SQLITE, SEMEL_CONF_STORE_POSTGRES };

struct semel_conf_admin {
    bool on;
    struct semel_setting_server server;
    struct semel_str read_token; /* may be not given */
};

struct semel_conf_log {
    enum semel_log_format format;
    enum semel_log_level level;
};

struct semel_conf_schedule {
    int64_t every_us, purge_us;
    int64_t rows;
    bool others; /* housekeeping of consumers that are no routes of this file, too */
};

struct semel_conf {
    struct semel_str store; /* a secret: it may hold a password */
    enum semel_conf_store store_kind;
    struct semel_str store_said; /* as the file has it, fit to be shown */
    bool store_plain;            /* it is on another host without a certificate that is checked, and that is meant */
    struct semel_route *routes;  /* in the order of the file */
    size_t n_routes;
    struct semel_conf_outbox *outboxes;
    size_t n_outboxes;
    struct semel_conf_gateway *gateways;
    size_t n_gateways;
    struct semel_conf_admin admin;
    struct semel_conf_log log;
    struct semel_conf_schedule schedule;
    int64_t stop_within_us;
};

/* ---- reading ---- */

struct semel_conf_mistake {
    int line, column;       /* from 1, in characters */
    struct semel_str path;  /* routes.billing.retry.max; not given: the file as a whole */
    struct semel_str text;  /* what is wrong, and what would be right */
    struct semel_str shown; /* the line, without control characters and secrets; not given: there is none */
    int caret, width;       /* where in `shown`, from 0, and how many characters */
};

struct semel_conf_mistakes {
    struct semel_arena arena;
    const char *file;
    struct semel_conf_mistake at[SEMEL_CONF_MISTAKES];
    size_t n;
    size_t more; /* that found no room */
};

void semel__conf_mistakes_init(struct semel_conf_mistakes *mistakes);
void semel__conf_mistakes_done(struct semel_conf_mistakes *mistakes);
/* All of them, each with its line and a caret. */
void semel__conf_mistakes_print(const struct semel_conf_mistakes *mistakes, struct semel_buf *buf);

struct semel_conf_input {
    const char *name;   /* of the file, for mistakes */
    const char *folder; /* where relative file names start; NULL: the working directory */
    struct semel_str text;
    const char *(*env)(void *ctx, const char *name); /* NULL answers: not set */
    void *env_ctx;
};

/* INVALID: there are mistakes. RETRY: no memory. The files that the settings name are looked at, secrets are read; no
 * server is asked for anything. */
semel_status semel__conf_read(const struct semel_conf_input *input, struct semel_conf **ret,
                              struct semel_conf_mistakes *mistakes, struct semel_error *err);
/* The same for a file ("-": stdin) and the environment of the process. INVALID with no mistakes: the file itself cannot
 * be read, err says why. */
semel_status semel__conf_load(const char *file, struct semel_conf **ret, struct semel_conf_mistakes *mistakes,
                              struct semel_error *err);
void semel__conf_free(struct semel_conf *conf);

/* ---- the table, for people ---- */

struct semel_conf_shown {
    const char *path;   /* routes.NAME.from.kafka */
    const char *choice; /* of which kind of source or handler; NULL: of all */
    const char *type;   /* "a duration such as 90s, 1ms to 1d" */
    const char *other;  /* the default; NULL: none */
    const char *help;
    bool computed; /* the default is a description */
    bool required; /* within its mapping */
    bool secret;   /* may be said as NAME_file */
    bool group;    /* has settings below it */
};
/* Every setting in the order of the table; the strings live until `each` returns. */
void semel__conf_settings(void (*each)(void *ctx, const struct semel_conf_shown *shown), void *ctx);
/* A file to start with: what must be said for these kinds; full: every setting of them, explained. */
void semel__conf_example(const struct semel_broker_kind *source, enum semel_do_kind handler, bool full,
                         struct semel_buf *buf);

/* Are its positions kept with the effects? */
bool semel__source_stores_positions(const struct semel_source *from);
/* NULL: it is no route that listens. */
const struct semel_listen_options *semel__route_listens(const struct semel_route *route);
/* Its messages are in the inbox already: it has no deliveries (`from: inbox`). */
bool semel__route_stored(const struct semel_route *route);
const char *semel__do_name(enum semel_do_kind kind);
bool semel__do_parse(struct semel_str name, enum semel_do_kind *ret);
/* Why a copy of a message is known for one even after its record is gone, in a clause; NULL: it is not. */
const char *semel__route_lasting(const struct semel_route *route);
/* The next secret of a URL, or of a line with one, from `from` on: the password of its user, or the value of a
 * parameter whose name is that of a secret, or was meant to be. In doubt it is too long rather than too short. */
bool semel__conf_secret(struct semel_str text, size_t from, struct semel_str *ret);
const char *semel__order_rests_name(enum semel_order_rests rests); /* none, source, versions */
const char *semel__checklist_name(enum semel_checklist item);
/* The label of a gateway, as check, the log, metrics and the API have it: ATOMIC or GUARDED, for ever. */
const char *semel__gateway_guarantee(const struct semel_conf_gateway *gateway);

#endif
