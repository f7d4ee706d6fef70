/* SPDX-License-Identifier: MIT
 *
 * inbox.h: what the files of `semel inbox` share: the filters, finding one message, and giving one command.
 */
#ifndef SEMEL_CLI_INBOX_H
#define SEMEL_CLI_INBOX_H

#include "cli/cli.h"
#include "cli/explain.h"

extern const struct cli_command inbox_ls, inbox_show, inbox_retry, inbox_discard, inbox_resolve;

/* ---- choosing (inbox.c) ---- */

#define INBOX_WHOSE_OPTIONS                                                     \
    {"consumer", 'c', "NAME", "only of this consumer"},                         \
    {                                                                           \
        "source", 0, "NAME", "only of this source (\"\" for those without one)" \
    }
#define INBOX_FILTER_OPTIONS                                                                                       \
    INBOX_WHOSE_OPTIONS, {"status", 's', "STATUS...", "only in these: a name, or several with commas between"},    \
        {"dead", 0, NULL, "the same as --status dead"}, {"type", 0, "TYPE", "only of this type"},                  \
        {"key", 'k', "KEY", "only of this order key"}, {"error", 0, "TEXT", "only if the last error contains it"}, \
        {"class", 0, "CLASS", "only if the last error is of this class"},                                          \
        {"older", 0, "DURATION", "received longer ago than this, e.g. 2h"},                                        \
    {                                                                                                              \
        "newer", 0, "DURATION", "received within this time, e.g. 15m"                                              \
    }

/* The filter that was given. false: cli_fail has spoken. Strings are the arguments'. */
bool inbox_filter(const struct cli_args *args, int64_t now_us, struct semel_filter *ret);
/* Which filter besides --consumer and --source was given; NULL: none. */
const char *inbox_filter_given(const struct cli_args *args);
/* Appends the filters, as they would be given again. */
void inbox_put_filters(struct semel_buf *buf, const struct cli_args *args);
/* Finds the one message of that id, --consumer and --source. 0, or an exit code after cli_fail has spoken: none, or
 * several. ret_damaged: there is one, but it cannot be read; else that is a failure. */
int inbox_find(struct cli *cli, const struct cli_args *args, struct semel_store *store, const char *id,
               bool with_payload, struct semel_row **ret_row, bool *ret_damaged);
/* What is known of a message besides its row; `facts` is filled from it, all of it in the arena. 0, or an exit code. */
int inbox_facts(struct cli *cli, const struct cli_args *args, struct semel_store *store, struct semel_row *row,
                struct cli_facts *ret);

/* ---- one command (inbox_act.c) ---- */

struct inbox_actor {
    struct semel_store *store;
    enum semel_order_word word;
    bool force;
    struct semel_str who, reason, outcome;
    struct semel_random rng;
    struct semel_policy policy; /* of the consumer of the last message */
    struct semel_inbox inbox;
    struct semel_arena arena; /* the consumer's name, its settings */
    bool ready;
};

enum inbox_result { INBOX_DONE, INBOX_SKIPPED, INBOX_REFUSED };
struct inbox_answer {
    enum inbox_result result;
    enum semel_state state; /* of the row now */
    char text[256];         /* why it was not done; the same for the same cause */
    char figure[256];       /* more about this one message; may be empty */
};
extern const char *const inbox_result_names[]; /* as a selection keeps them */
extern const char *const inbox_word_names[];   /* retry, discard, resolve */

/* who: $SEMEL_USER, else login@host, in the arena of cli. 0, or an exit code. */
int inbox_actor_init(struct inbox_actor *actor, struct cli *cli, struct semel_store *store, enum semel_order_word word);
void inbox_actor_done(struct inbox_actor *actor);
/* Says it to one row, in one transaction, if it has not been touched since updated_us. OK: `ret` tells what came of
 * it. Contention is waited out for a while; after a commit of unknown outcome the row is looked at again. */
semel_status inbox_act(struct inbox_actor *actor, const struct semel_selected *row, struct inbox_answer *ret,
                       struct semel_error *err);

/* ---- many ---- */

/* inbox_bulk.c: filters, or --resume, instead of ids. */
int inbox_in_bulk(struct cli *cli, const struct cli_args *args, enum semel_order_word word);

/* inbox_count.c: counts and shows what matches. 0: go on, and *ret_dry says that this was all; else an exit code:
 * nothing matches, or too much. */
#define INBOX_SELECTION_MAX 100000
int inbox_count(const struct cli *cli, const struct cli_args *args, struct semel_store *store,
                const struct semel_filter *filter, enum semel_order_word word, bool *ret_dry);
/* What a dry run says at its end. */
int inbox_count_dry(const struct cli *cli, enum semel_order_word word, int64_t total, const struct semel_group *groups,
                    size_t n);

/* inbox_tally.c: what came of a run through a selection. */
struct inbox_tally;
struct inbox_tally *inbox_tally_new(void);
void inbox_tally_free(struct inbox_tally *tally);
/* Counts it. What was not done is told on stderr at once, up to a bound. */
void inbox_tally_add(struct inbox_tally *tally, const struct semel_selected *row, const struct inbox_answer *answer);
int64_t inbox_tally_n(const struct inbox_tally *tally, enum inbox_result result);
int inbox_tally_print(const struct cli *cli, const struct inbox_tally *tally);
/* [{"result": ..., "reason": ..., "count": ..., "example": ...}, ...] */
void inbox_tally_json(const struct inbox_tally *tally, struct cli_object *object, const char *name);

/* inbox_watch.c: does it help? The probe, and an eye on those that were released. */
void inbox_catch(void);       /* from now on SIGINT and SIGTERM are kept until they are asked for */
bool inbox_pause(int64_t us); /* waits; true, and at once: interrupted */
bool inbox_interrupted(void); /* was there one, ever? */
enum inbox_fate {
    INBOX_PENDING, /* nobody has taken it yet */
    INBOX_RUNNING,
    INBOX_PARKED, /* it waits for another message: it proves nothing */
    INBOX_ENDED,
    INBOX_FAILED /* it ran and failed again; the cause is still there */
};
struct inbox_sight {
    enum inbox_fate fate;
    char cause[600]; /* FAILED: class and text */
};
/* Watches one that was just retried until it has a fate, or the time is over. */
semel_status inbox_probe(struct inbox_actor *actor, const struct semel_selected *row, int64_t wait_us,
                         struct inbox_sight *ret, struct semel_error *err);
struct inbox_watch;
struct inbox_watch *inbox_watch_new(void);
void inbox_watch_free(struct inbox_watch *watch);
void inbox_watch_add(struct inbox_watch *watch, const struct semel_selected *row);
/* Looks at some of those that were added. fate is FAILED when most of the last that ended have failed again. */
semel_status inbox_watch_look(struct inbox_watch *watch, struct inbox_actor *actor, struct inbox_sight *ret,
                              struct semel_error *err);

#endif
