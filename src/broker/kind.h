/* SPDX-License-Identifier: MIT
 *
 * kind.h: the description of one kind of broker for the other rooms: its settings, what they promise, how to open it,
 * and what it can be asked. kinds.c has the table; settings, `semel check`, `semel init` and the daemon use it.
 *
 * To add a source or a sink: its driver, a descriptor, a line in the table.
 *
 * Invariants: a kind is in the table even when this program was built without its driver: its settings are read and
 * checked anyway, and only opening and asking fail.
 */
#ifndef SEMEL_BROKER_KIND_H
#define SEMEL_BROKER_KIND_H

#include "base/setting.h"
#include "base/signature.h"
#include "core/broker.h"

/* One partition of an assignment, and where to start. */
struct semel_source_start {
    struct semel_str topic;
    int32_t partition;
    /* In: the offset that the broker keeps for us. Out: the first offset to deliver. SEMEL_NONE: there is none, and the
     * settings decide. */
    int64_t offset;
};

/* Hooks of a source, called by the thread that polls it, inside poll, close or reopen. */
struct semel_source_hooks {
    /* Log lines of the client library; `level` is syslog's. NULL: nothing is logged. */
    void (*log)(void *ctx, int level, const char *facility, const char *text);
    void *log_ctx;
    /* For routes that keep their positions with the effects (I23): the database decides where to start, whatever the
     * broker has. These partitions are ours from now on, and none of their records has been delivered. Raise their
     * epochs in the database, read the positions, fill in the offsets. Any status but OK closes the handle: poll
     * returns CLOSED with this error, and after a reopen the hook is called again. NULL: the broker keeps the
     * positions. */
    semel_status (*assigned)(void *ctx, struct semel_source_start *starts, size_t n, struct semel_error *err);
    /* These partitions are no longer ours, and their tags are fenced. `lost`: another process may have them already.
     * May be NULL. */
    void (*revoked)(void *ctx, const struct semel_source_start *starts, size_t n, bool lost);
    void *ctx;
};

struct semel_source_gauges {
    int64_t behind, assigned, stopped; /* -1: not known */
};

enum semel_finding { SEMEL_FINDING_OK, SEMEL_FINDING_WARNING, SEMEL_FINDING_FAILED };

/* Asks a broker about a route or an outbox (`semel check --online`) and gets the findings. */
struct semel_inspector {
    int timeout_ms;   /* per question */
    int64_t lease_us; /* of the route, to compare with */
    int retry_max;
    bool one_by_one; /* of an outbox: one event of an aggregate at a time */
    void (*asking)(const struct semel_inspector *inspector, const char *question);
    void (*found)(const struct semel_inspector *inspector, enum semel_finding finding, const char *question,
                  const char *text);
    /* The broker keeps messages for kept_us; SEMEL_NONE: for ever, for the given reason. */
    void (*keeps)(const struct semel_inspector *inspector, const char *question, int64_t kept_us, const char *because);
    void (*unreached)(const struct semel_inspector *inspector, const char *question, semel_status status,
                      const struct semel_error *err);
};

#define SEMEL_KIND_POSITIONS 1u /* numbers its deliveries: a position is an id */
#define SEMEL_KIND_DOUBTS 2u    /* says of each delivery that it cannot count whether it may have been seen before */
#define SEMEL_KIND_SERVED 4u    /* the HTTP server makes it, so that it has no `open`; who sent a message is answered */
#define SEMEL_KIND_STORED 16u   /* what is in the inbox of the store already: nothing is delivered, it has no `open` */
#define SEMEL_KIND_RUNS 8u      /* its sink has SEMEL_BROKER_RUNS (core/broker.h) */

/* The options of every sink begin with it: where events go (core/destination.h). */
struct semel_sink_options {
    struct semel_str destination;      /* a template; given when `to_check` has looked at it */
    struct semel_setting_list allowed; /* what may come of it */
};
#define SEMEL_SINK_PLACE_PARTS 2

struct semel_broker_kind {
    const char *name;           /* the key below `from:` and `to:` */
    const char *client_reports; /* the log's text for lines of the client library, by hooks.log; NULL: there are none */
    unsigned flags;
    const struct semel_setting_group *from; /* settings, read straight into the options; NULL: no source */
    size_t options_size;
    /* Fills in what follows from the route, and reports settings that contradict each other. */
    void (*check)(void *options, const struct semel_setting_check *check);
    /* The rules of id and type where the route sets none (core/extract.h); *ret NULL: those of every source. NULL: the
     * same. *ret_count: a JSON pointer to what changes when a message is sent again; NULL: nothing does. */
    void (*rules)(const void *options, const char **ret_id, const char **ret_type, const char **ret_count);
    /* Would both read from the same queue, so that each gets only a part? NULL: never. */
    bool (*same_queue)(const void *a, const void *b);
    const char *apart; /* what to do then */
    /* The basis of the order of messages, as a clause; *ret_ordered: the source has an order. */
    const char *(*order)(const void *options, bool *ret_ordered);
    /* Who can read messages or impersonate whom on the network, as a sentence. */
    void (*connection)(const void *options, const struct semel_setting_check *check, struct semel_buf *buf);
    /* How many deliveries to have at a time if `wanted` are wanted. NULL: as many. */
    size_t (*in_flight)(const void *options, size_t wanted);
    /* Does the store keep positions with the effects? NULL: never. */
    bool (*stores_positions)(const void *options);
    /* NULL: not built in, SERVED or STORED. hooks may be NULL. */
    semel_status (*open)(struct semel_broker **ret, const void *options, const struct semel_source_hooks *hooks,
                         struct semel_error *err);
    void (*inspect)(const void *options, const struct semel_inspector *inspector); /* NULL as for open */
    void (*gauges)(struct semel_broker *broker, struct semel_source_gauges *ret);  /* NULL: nothing is known */

    /* The sink. Its options are others than those of the source. */
    const struct semel_setting_group *to; /* NULL: no sink */
    size_t to_options_size;               /* a struct that begins with semel_sink_options */
    void (*to_check)(void *options, const struct semel_setting_check *check);
    void (*to_connection)(const void *options, const struct semel_setting_check *check, struct semel_buf *buf);
    /* Where the destinations are: the server, without a user or a password, and what else chooses among places of one
     * name. ret[i] may be not given. NULL: a destination says it all. */
    void (*to_place)(const void *options, struct semel_str ret[SEMEL_SINK_PLACE_PARTS]);
    /* NULL: not built in. hooks may be NULL; of them `log` counts. */
    semel_status (*open_sink)(struct semel_broker **ret, const void *options, const struct semel_source_hooks *hooks,
                              struct semel_error *err);
    /* Asks for each destination that the settings name; publishes nothing. NULL as for open_sink. */
    void (*to_inspect)(const void *options, const struct semel_inspector *inspector);
};

extern const struct semel_broker_kind *const semel__broker_kinds[]; /* sources; ended by NULL; the first: the default */
extern const struct semel_broker_kind *const semel__sink_kinds[];   /* sinks; ended by NULL; the first: the default */
/* NULL: there is none of this name. */
const struct semel_broker_kind *semel__broker_kind(struct semel_str name);
const struct semel_broker_kind *semel__sink_kind(struct semel_str name);

/* The options of `listen`, which has no driver: POSTs to our own HTTP server. */
struct semel_listen_options {
    struct semel_setting_server server; /* its token may be missing where there is a signature */
    struct semel_str path;              /* begins with a slash; unique among the routes of this address */
    struct semel_str source;            /* the stream that ids belong to */
    int64_t body_max;                   /* bytes of a request */
    struct semel_signature_options signature;
};

#endif
