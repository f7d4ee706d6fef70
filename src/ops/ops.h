/* SPDX-License-Identifier: MIT
 *
 * ops.h: what operators do, for the command line and for HTTP: find, list, group and explain messages, give commands to
 * one of them or to a frozen selection, show and change consumers; list, explain, retry and discard the events of the
 * outbox; list, explain, resolve and discard idempotency keys; and all of it as JSON.
 *
 * Nothing here prints, asks, sleeps or knows about signals: that is the faces' part. A face reads options or a request,
 * calls one of these, and shows what came of it.
 *
 * Invariants: every read is bounded. A command is about the row that was read: one that has been touched since is left
 * alone (P43). The same call gives the same JSON, whoever asks.
 */
#ifndef SEMEL_OPS_OPS_H
#define SEMEL_OPS_OPS_H

#include "base/object.h"
#include "core/consumer.h"
#include "core/inbox.h"
#include "store/query.h"
#include "ops/explain.h"

/* One store connection and who acts on it. A handle belongs to one thread. */
struct semel_ops {
    struct semel_store *store;
    struct semel_arena *arena; /* whatever is returned lives here, until its owner resets it */
    struct semel_str who;      /* for the audit */
    const char *store_option;  /* the value of --store, for suggested commands; NULL: it was not given */
    /* Private: the inbox of the consumer that was commanded last, under its own policy. */
    struct semel_random rng;
    struct semel_policy policy;
    struct semel_inbox inbox;
    struct semel_arena kept;
    bool ready;
};
/* Everything is borrowed. RETRY: the system gives no random numbers. */
semel_status semel__ops_init(struct semel_ops *ops, struct semel_store *store, struct semel_arena *arena,
                             struct semel_str who, struct semel_error *err);
void semel__ops_done(struct semel_ops *ops);

/* ---- options: --status dead and ?status=dead are the same (find.c) ---- */

struct semel_option {
    struct semel_str name, value;
};
#define SEMEL_LIST_LIMIT 50
#define SEMEL_LIST_MAX 10000
struct semel_query {
    struct semel_filter filter;
    size_t limit;
    int64_t after; /* SEMEL_NONE: the first page */
};
/* consumer, source, status (also several times, or with commas), dead, type, key, error, class, older, newer. INVALID:
 * err begins with the name of the option that is wrong. Strings are borrowed. */
semel_status semel__ops_filter(const struct semel_option *options, size_t n, int64_t now_us, struct semel_filter *ret,
                               struct semel_error *err);
/* The same, and limit and after. */
semel_status semel__ops_query(const struct semel_option *options, size_t n, int64_t now_us, struct semel_query *ret,
                              struct semel_error *err);

/* ---- reading (find.c) ---- */

struct semel_list {
    struct semel_row *rows;
    size_t n;
    bool more;      /* there is a next page: after the arrival of the last row */
    size_t damaged; /* rows that cannot be read, and are left out */
};
semel_status semel__ops_list(struct semel_ops *ops, const struct semel_query *query, struct semel_list *ret,
                             struct semel_error *err);
#define SEMEL_GROUPED_MAX 100000 /* rows that are looked at for groups */
struct semel_groups {
    struct semel_group *groups; /* the largest first */
    size_t n;
    bool capped; /* only the first SEMEL_GROUPED_MAX were looked at */
};
/* INVALID: query->after is for lists. */
semel_status semel__ops_groups(struct semel_ops *ops, const struct semel_query *query, struct semel_groups *ret,
                               struct semel_error *err);

enum semel_found { SEMEL_FOUND, SEMEL_FOUND_NONE, SEMEL_FOUND_SEVERAL, SEMEL_FOUND_DAMAGED };
#define SEMEL_HOMONYMS_MAX 20 /* messages of one id that are told apart by name */
struct semel_find {
    enum semel_found found;
    struct semel_row *rows; /* FOUND: one; SEVERAL: at most SEMEL_HOMONYMS_MAX */
    size_t n;
};
/* The one message of that id; consumer and source may be not given. INVALID: it cannot be an id. */
semel_status semel__ops_find(struct semel_ops *ops, struct semel_str consumer, struct semel_str source,
                             struct semel_str id, bool with_payload, struct semel_find *ret, struct semel_error *err);
/* NONE: the message may have been there and was purged. Appends how that is known; false: nothing speaks for it. */
bool semel__ops_purged(struct semel_ops *ops, struct semel_str consumer, struct semel_str source, struct semel_str id,
                       struct semel_buf *text);
/* DAMAGED: what is wrong with the row, as semel__explain tells it; the consumer must be given. */
void semel__ops_damage(struct semel_ops *ops, struct semel_str consumer, struct semel_str source, struct semel_str id,
                       struct semel_buf *why, struct semel_buf *next);
/* What is known of a message besides its row. */
semel_status semel__ops_facts(struct semel_ops *ops, const struct semel_row *row, struct semel_ops_facts *ret,
                              struct semel_error *err);

/* ---- one command (command.c) ---- */

struct semel_instruction {
    enum semel_command_kind kind;
    bool force; /* of a retry or a correct */
    struct semel_str reason;
    struct semel_str outcome; /* of a resolve: JSON, or not given */
    struct semel_str payload; /* of a correct; the row is read with its payload then */
};
/* INVALID: the outcome or the reason cannot be one. A dry run needs no reason. */
semel_status semel__ops_check(const struct semel_instruction *given, bool dry_run, struct semel_error *err);

enum semel_answer_kind { SEMEL_DID, SEMEL_SKIPPED, SEMEL_REFUSED, SEMEL_WOULD, SEMEL_WOULD_NOT };
const char *semel__answer_name(enum semel_answer_kind kind); /* done, skipped, refused, would, would not */
struct semel_answer {
    enum semel_answer_kind kind;
    enum semel_judgement judged;
    enum semel_row_status state; /* of the row now */
    char cause[256];             /* why it was not done; the same for the same cause */
    char figure[256];            /* more about this one message; may be empty */
    char text[1200];             /* all of it, for a person; follows the message's id */
    char copy[SEMEL_ID_MAX + 1]; /* of a correct that was done: the id of the copy; else empty */
};
/* Gives the command to one row, in one transaction, if the row has not been touched since it was read; or says what it
 * would do. Contention is waited out for a while; after a commit of unknown outcome the row is looked at again. */
semel_status semel__ops_command(struct semel_ops *ops, const struct semel_instruction *given,
                                const struct semel_row *row, bool dry_run, struct semel_answer *ret,
                                struct semel_error *err);

/* ---- many ----
 *
 *   1. what matches is counted and grouped by its cause; a dry run ends here;
 *   2. it is written down as a numbered selection: rows that come later are no part of it, and a row that has changed
 *      since is left alone, whoever has changed it;
 *   3. a retry tries the first message alone and goes on only when it did not fail again;
 *   4. the rest follows at the rate, in chunks: a chunk is one transaction, which changes its rows, writes their audit
 *      lines and marks their places in the selection. Who dies leaves whole chunks: nothing is done twice (P42);
 *   5. it stops when the cause turns out to be there still, or when it is told to, always between two chunks. */

#define SEMEL_SELECTION_MAX 5000000 /* messages that are looked at to find what matches */
#define SEMEL_CAUSES_COUNTED 20000  /* groups of semel__bulk_count */
#define SEMEL_BULK_RATE 50          /* of a retry, which puts its load on others; discard and resolve have no limit */
#define SEMEL_BULK_RATE_MAX 100000
#define SEMEL_BULK_WAIT_US INT64_C(10000000)

/* INVALID: the filter says no status, or one that there is nothing to do about; err begins with `status`. */
semel_status semel__bulk_check(const struct semel_filter *filter, enum semel_command_kind kind,
                               struct semel_error *err);
/* What a bulk command would meet. ret->n == SEMEL_CAUSES_COUNTED: there may be more causes, and the total is a lower
 * bound. INVALID: too much has to be looked at. */
semel_status semel__bulk_count(struct semel_ops *ops, const struct semel_filter *filter, struct semel_groups *ret,
                               int64_t *ret_total, struct semel_error *err);
/* Writes the selection down. ret->n == 0: nothing matches any more. */
semel_status semel__bulk_select(struct semel_ops *ops, const struct semel_filter *filter,
                                const struct semel_instruction *given, struct semel_selection *ret,
                                struct semel_error *err);
/* *ret_found = false: there is no selection of that number. */
semel_status semel__bulk_find(struct semel_ops *ops, int64_t number, struct semel_selection *ret, bool *ret_found,
                              struct semel_error *err);

struct semel_bulk_options {
    int64_t rate; /* messages per second; 0: as fast as it goes; SEMEL_NONE: as the command has it */
    int64_t wait_us;
    bool probe; /* retry: the first message alone */
};
struct semel_bulk; /* one run through a selection */
/* `ops` must outlive it, and serve nothing else while a step runs. INVALID: what is written down is no command of ours.
 */
semel_status semel__bulk_open(struct semel_bulk **ret, struct semel_ops *ops, const struct semel_selection *selection,
                              const struct semel_bulk_options *options, struct semel_error *err);
void semel__bulk_close(struct semel_bulk *bulk);
/* Does the next thing: at most one chunk of messages. Returns how long to wait before the next step, in microseconds;
 * 0: no time; -1: it is over. Never waits itself. */
int64_t semel__bulk_step(struct semel_bulk *bulk);
/* Ends it early; the word is for programs, the cause for people. Does nothing when it is over. */
void semel__bulk_stop(struct semel_bulk *bulk, const char *word, const char *cause);
bool semel__bulk_over(const struct semel_bulk *bulk);
const char *semel__bulk_stopped(const struct semel_bulk *bulk, const char **ret_cause); /* the word; NULL: it was not */
/* What the last step did to its i-th message, from 0; NULL: it did nothing to any more. */
const struct semel_answer *semel__bulk_answer(const struct semel_bulk *bulk, size_t i, struct semel_str *ret_id,
                                              struct semel_str *ret_consumer);
/* Of this run. */
int64_t semel__bulk_n(const struct semel_bulk *bulk, enum semel_answer_kind kind);
struct semel_cause { /* how often the same came of it */
    enum semel_answer_kind kind;
    char text[256], example[SEMEL_ID_MAX + 1];
    int64_t n;
};
const struct semel_cause *semel__bulk_causes(const struct semel_bulk *bulk, size_t *ret_n);

/* ---- consumers (consumer.c) ---- */

/* The label, as far as stored settings tell: the rules of a route's file (`time`, `business_key`) may make it last for
 * ever, and never less. */
struct semel_guarantee_text semel__ops_guarantee(const struct semel_policy *policy);

struct semel_consumer_line {
    struct semel_str name, settings;       /* settings: what is stored, on one line */
    struct semel_guarantee_text guarantee; /* DAMAGED: the settings cannot be read */
};
semel_status semel__ops_consumer_line(struct semel_ops *ops, struct semel_str name, struct semel_consumer_line *ret,
                                      struct semel_error *err);
/* By name, after `after` (not given: from the first), at most max. */
semel_status semel__ops_consumers(struct semel_ops *ops, struct semel_str after, size_t max,
                                  struct semel_consumer_line **ret, size_t *ret_n, struct semel_error *err);
struct semel_consumer_shown {
    struct semel_policy policy; /* as it holds, defaults included */
    struct semel_set_by by;     /* which file sets it, and since when; may be not given */
};
/* *ret_known = false: it has neither messages nor settings. */
semel_status semel__ops_consumer(struct semel_ops *ops, struct semel_str name, struct semel_consumer_shown *ret,
                                 bool *ret_known, struct semel_error *err);
/* Changes settings, by a person: see core/consumer.h. INVALID: err says what is wrong; ret->refused: force would do
 * it. Force needs a reason. */
semel_status semel__ops_consumer_set(struct semel_ops *ops, struct semel_str name, struct semel_str settings,
                                     struct semel_str reason, bool force, struct semel_setting *ret,
                                     struct semel_error *err);

/* ---- events of the outbox (outbox.c) ---- */

struct semel_event_query {
    struct semel_event_filter filter;
    bool statuses_given; /* else: all but published ones */
    size_t limit;
    int64_t after; /* SEMEL_NONE: the first page */
};
/* status (also several times, or with commas), dead, aside, aggregatetype, aggregateid, type, destination, limit and
 * after. INVALID: err begins with the name of the option that is wrong. Strings are borrowed. */
semel_status semel__ops_event_query(const struct semel_option *options, size_t n, struct semel_event_query *ret,
                                    struct semel_error *err);
struct semel_events {
    struct semel_event_row *rows;
    size_t n;
    bool more; /* there is a next page: after the seq of the last row */
};
semel_status semel__ops_events(struct semel_ops *ops, const struct semel_event_query *query, struct semel_events *ret,
                               struct semel_error *err);

struct semel_event_facts {
    struct semel_event_row *row; /* NULL: there is no such event; what was done to it may be known all the same */
    struct semel_event_place place;
    struct semel_act_line *acts; /* newest first */
    size_t n_acts;
    int64_t now_us;
    const char *store; /* the value of --store, for suggested commands; NULL: it was not given */
};
/* INVALID: it cannot be an id. */
semel_status semel__ops_event(struct semel_ops *ops, struct semel_str id, struct semel_event_facts *ret,
                              struct semel_error *err);
/* Why it is not going (or what came of it), and what would make it go. The row is there. */
void semel__explain_event(const struct semel_event_facts *facts, struct semel_buf *why, struct semel_buf *next);

enum semel_event_judgement {
    SEMEL_EVENT_ALLOWED,
    SEMEL_EVENT_NO_SUCH,
    SEMEL_EVENT_IS_PUBLISHING,
    SEMEL_EVENT_WAS_PUBLISHED,
    SEMEL_EVENT_NOT_ASIDE, /* retry: it is in the outbox and goes in its turn */
    SEMEL_EVENT_BEHIND     /* retry: it waits for an earlier event of its aggregate */
};
struct semel_event_answer {
    char id[SEMEL_EVENT_ID_TEXT];
    enum semel_answer_kind kind;
    enum semel_event_judgement judged;
    const char *status; /* now; NULL: there is no such event */
    const char *text;   /* follows the id */
};
/* RETRY and DISCARD, by the reason of `given`; see semel__ops_check. */
semel_status semel__ops_event_command(struct semel_ops *ops, const struct semel_instruction *given, struct semel_str id,
                                      bool dry_run, struct semel_event_answer *ret, struct semel_error *err);

void semel__ops_json_events(struct semel_buf *buf, const struct semel_events *events);
void semel__ops_json_event(struct semel_buf *buf, const struct semel_event_facts *facts);
void semel__ops_json_event_answers(struct semel_buf *buf, const struct semel_event_answer *answers, size_t n);
void semel__ops_json_event_answer(struct semel_buf *buf, const struct semel_event_answer *answer);

/* ---- idempotency keys (keys.c) ---- */

struct semel_key_query {
    struct semel_key_filter filter;
    size_t limit;
    int64_t after_token;        /* SEMEL_NONE: the first page */
    struct semel_str after_key; /* the same of completed ones */
};
/* status (also several times, or with commas), unknown, stuck, scope, older, limit and after. Nothing: processing and
 * unknown. INVALID: err begins with the name of the option that is wrong. Strings are borrowed. */
semel_status semel__ops_key_query(const struct semel_option *options, size_t n, int64_t now_us,
                                  struct semel_key_query *ret, struct semel_error *err);
struct semel_key_list {
    struct semel_key_row *rows;
    size_t n;
    bool more;                        /* there is a next page */
    char after[4 * SEMEL_ID_MAX + 1]; /* the value of its option `after` */
};
semel_status semel__ops_keys(struct semel_ops *ops, const struct semel_key_query *query, struct semel_key_list *ret,
                             struct semel_error *err);

struct semel_key_facts {
    struct semel_str scope, key;
    struct semel_key_row *row;   /* NULL: there is no such key; what was done to it may be known all the same */
    struct semel_act_line *acts; /* newest first */
    size_t n_acts;
    int64_t now_us;
    const char *store; /* the value of --store, for suggested commands; NULL: it was not given */
};
/* INVALID: one of them can be no scope or key. */
semel_status semel__ops_key(struct semel_ops *ops, struct semel_str scope, struct semel_str key, bool with_answer,
                            struct semel_key_facts *ret, struct semel_error *err);
/* What a request under it would get, and what would end it. The row is there. */
void semel__explain_key(const struct semel_key_facts *facts, struct semel_buf *why, struct semel_buf *next);

struct semel_key_instruction {
    enum semel_command_kind kind; /* RESOLVE or DISCARD */
    bool not_done;                /* of a resolve: released, because nothing was done */
    int64_t code;                 /* of a resolve: the answer that it ends with; SEMEL_NONE with not_done */
    struct semel_str headers;     /* of it; not given: none */
    struct semel_str body;        /* of it; not given: not kept */
    bool force;                   /* also while its request is running */
    int64_t token;                /* it is about this claim, and no later one; SEMEL_NONE: whichever it is */
    struct semel_str reason;
};
/* INVALID: err begins with the name of what is wrong. A dry run needs no reason. */
semel_status semel__ops_key_check(const struct semel_key_instruction *given, bool dry_run, struct semel_error *err);

enum semel_key_judgement {
    SEMEL_KEY_ALLOWED,
    SEMEL_KEY_NO_SUCH,
    SEMEL_KEY_HAS_ANSWER, /* it never changes */
    SEMEL_KEY_IS_RUNNING, /* its lease is alive: force would do it */
    SEMEL_KEY_HAS_CHANGED /* another request has it */
};
struct semel_key_report {
    struct semel_str scope, key;
    enum semel_answer_kind kind;
    enum semel_key_judgement judged;
    const char *status; /* now; NULL: there is no such key */
    const char *text;   /* follows the key */
};
/* In one transaction, with the line of the audit; or what it would do. */
semel_status semel__ops_key_command(struct semel_ops *ops, const struct semel_key_instruction *given,
                                    struct semel_str scope, struct semel_str key, bool dry_run,
                                    struct semel_key_report *ret, struct semel_error *err);

void semel__ops_json_keys(struct semel_buf *buf, const struct semel_key_list *list);
/* Without body; with headers if the facts have them. */
void semel__ops_json_key(struct semel_buf *buf, const struct semel_key_facts *facts);
void semel__ops_json_key_report(struct semel_buf *buf, const struct semel_key_report *report);

/* ---- as JSON (json.c); a document each, with a newline at its end ---- */

void semel__ops_json_list(struct semel_buf *buf, const struct semel_list *list);
void semel__ops_json_groups(struct semel_buf *buf, const struct semel_groups *groups);
/* The row, its history, why it is not running and what would make it run. */
void semel__ops_json_message(struct semel_buf *buf, const struct semel_ops_facts *facts);
/* What came of asking the other side about messages whose outcome was unknown. */
struct semel_asked {
    struct semel_str consumer, id;
    bool known; /* now */
    struct semel_str why;
};
struct semel_reconcile_sum {
    size_t routes;                /* that have a reconcile */
    size_t found, known, unknown; /* messages: that were looked at, known now, still unknown */
};
/* One element of `messages`, after a comma where it is not the first; and the whole, with a newline. */
void semel__ops_json_asked(struct semel_buf *buf, const struct semel_asked *one);
void semel__ops_json_reconcile(struct semel_buf *buf, const struct semel_reconcile_sum *sum, struct semel_str messages);
/* What came of commands to n rows: an array; of one row: an object. */
struct semel_report {
    const struct semel_row *row;
    struct semel_answer answer;
};
void semel__ops_json_answers(struct semel_buf *buf, const struct semel_report *report, size_t n);
void semel__ops_json_answer(struct semel_buf *buf, const struct semel_report *report);
void semel__ops_json_dry_run(struct semel_buf *buf, enum semel_command_kind kind, int64_t total,
                             const struct semel_groups *groups);
/* How far a selection is; `bulk` (may be NULL) tells what this run came to. */
void semel__ops_json_selection(struct semel_buf *buf, const struct semel_selection *now, const struct semel_bulk *bulk,
                               const char *store_option);
void semel__ops_json_consumers(struct semel_buf *buf, const struct semel_consumer_line *lines, size_t n);
/* `by` and `note` may be NULL. */
void semel__ops_json_consumer(struct semel_buf *buf, const struct semel_policy *policy, const struct semel_set_by *by,
                              const char *note);
/* "semel inbox retry --resume 7": how to go on with a selection. */
void semel__ops_put_resume(struct semel_buf *buf, const struct semel_selection *selection, const char *store_option);

#endif
