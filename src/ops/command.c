/* SPDX-License-Identifier: MIT
 *
 * command.c: commands to messages: retry, discard, resolve, correct; to one by one, or in bulk.
 *
 * Invariants: a command is about the row that was read: one that has been touched since is left alone (P43). The row
 * keeps its id (P41) and is changed by one transaction, together with its audit line (P42); core sees to that, and core
 * decides: what is said here follows from its code.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "core/consumer.h"
#include "ops/ops.h"
#include "base/wait.h"

#define TRIES 3 /* each waits for the store's own time-out */
#define CHUNK 500
#define CHUNKS_PER_S 10
#define CAUSES_MAX 50
#define CHECK_EVERY 20 /* messages, or a second */
#define LOOK_STEP_US INT64_C(50000)
#define WATCHED 256
#define LOOKS 32 /* messages that are looked at in one go */
#define WINDOW 5 /* of the last so many that ended ... */
#define ENOUGH 3 /* ... so many failed again: stop */

const char *semel__answer_name(enum semel_answer_kind kind)
{
    static const char *const names[] = {"done", "skipped", "refused", "would", "would not"};
    return names[kind];
}

semel_status semel__ops_check(const struct semel_instruction *given, bool dry_run, struct semel_error *err)
{
    struct semel_json *json = NULL;
    if (!dry_run && !semel__str_given(given->reason))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_REJECTED, "a reason is required (goes to the audit log)");
    if (semel__str_given(given->reason) &&
        (given->reason.n == 0 || given->reason.n > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(given->reason)))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "reason must be UTF-8 text of 1 to %d bytes",
                           SEMEL_ERROR_TEXT_MAX);
    if (!semel__str_given(given->outcome))
        return SEMEL_OK;
    struct semel_error why = {0};
    semel_status status = semel__json_parse(&json, given->outcome, SEMEL_OUTCOME_MAX, &why);
    semel__json_free(json);
    return status == SEMEL_OK ? SEMEL_OK
                              : semel__fail(err, status, SEMEL_CLASS_PERMANENT, "outcome must be JSON: %s", why.text);
}

/* The inbox of that consumer, under its own policy; it stays until another one is asked for. */
static semel_status be_ready(struct semel_ops *ops, struct semel_str consumer, struct semel_error *err)
{
    static const struct semel__handler nobody = {0}; /* a command runs nothing */
    struct semel_str name;
    bool said;
    if (ops->ready && semel__str_eq(ops->policy.consumer, consumer))
        return SEMEL_OK;
    if (ops->ready)
        semel__inbox_done(&ops->inbox);
    ops->ready = false;
    semel__arena_reset(&ops->kept);
    if (!semel__arena_copy(&ops->kept, consumer, &name))
        return semel__fail_memory(err);
    semel_status status = semel__consumer_load(ops->store, name, &ops->kept, &ops->policy, &said, err);
    if (status != SEMEL_OK)
        return status;
    ops->policy.consumer = name;
    semel__inbox_init(&ops->inbox, ops->store, &ops->policy, &nobody, &ops->rng, ops->who);
    ops->ready = true;
    return SEMEL_OK;
}

static void show(struct semel_buf *from, char *to, size_t size)
{
    semel__str_show(to, size, semel__buf_str(from));
    semel__buf_done(from);
}

/* Why it was not done; and of one that is too old, how old it is and what would be young enough. */
static void put_why(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                    const struct semel_error *err, struct semel_answer *ret)
{
    struct semel_buf text;
    bool nothing = ret->judged == SEMEL_JUDGED_WRONG_STATUS || ret->judged == SEMEL_JUDGED_ALREADY_DUE;
    semel__buf_init(&text, sizeof ret->cause);
    semel__put_refusal(&text, ret->judged, given->kind, ret->state, err);
    show(&text, ret->cause, sizeof ret->cause);
    semel__buf_init(&text, sizeof ret->figure);
    if (ret->judged == SEMEL_JUDGED_TOO_OLD)
        semel__put_age(&text, row, &ops->policy, semel__now(&semel__clock_real));
    show(&text, ret->figure, sizeof ret->figure);
    snprintf(ret->text, sizeof ret->text, "%s%s%s%s", nothing ? "" : "was not touched: ", ret->cause,
             ret->figure[0] != '\0' ? "; " : "", ret->figure);
}

/* The places of rows in a selection. */
struct semel_places_marked {
    int64_t selection;
    const int64_t *at; /* of each row */
};

/* The places of a selection, marked with what came of their rows. */
struct marking {
    struct semel_store *store;
    const struct semel_places_marked *places;
    const struct semel_command_result *results;
    size_t n;
};

static enum semel_answer_kind kind_of(const struct semel_command_result *result)
{
    return result->done ? SEMEL_DID : result->why.status == SEMEL_OK ? SEMEL_SKIPPED : SEMEL_REFUSED;
}

static semel_status mark(void *ctx, struct semel_error *err)
{
    const struct marking *m = ctx;
    struct semel_mark *marks = semel__calloc(m->n, sizeof *marks);
    if (marks == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < m->n; i++)
        marks[i] = (struct semel_mark){m->places->at[i], semel__str(semel__answer_name(kind_of(&m->results[i])))};
    semel_status status = semel_query_mark(m->store, m->places->selection, marks, m->n, err);
    semel__free(marks);
    return status;
}

/* The store has refused one row by itself: that is its answer, and its place is marked apart. */
static semel_status mark_refused(struct marking *m, struct semel_command_result *result, struct semel_error *err)
{
    int64_t now_us;
    *result = (struct semel_command_result){.judged = SEMEL_JUDGED_ALLOWED, .why = *err};
    if (m->places == NULL)
        return SEMEL_OK;
    semel_status status = semel_store_begin(m->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = mark(m, err);
    if (status == SEMEL_OK)
        return semel_store_commit(m->store, err);
    semel_store_rollback(m->store);
    return status;
}

/* One command once and without what it does to others, to n rows of one consumer in one transaction (see
 * semel__inbox_commands), which also marks their places in a selection, if there is one. UNKNOWN: the answers hold if
 * the places are marked. All others but OK: nothing was done. */
static semel_status act_on_rows(struct semel_ops *ops, const struct semel_instruction *given,
                                const struct semel_row *const *rows, size_t n, const struct semel_places_marked *places,
                                struct semel_answer *ret, struct semel_error *err)
{
    const struct semel_command command = {.kind = given->kind,
                                          .who = ops->who,
                                          .reason = given->reason,
                                          .outcome = given->outcome,
                                          .force = given->force};
    struct semel_command_result *results = semel__calloc(n, sizeof *results);
    struct marking m = {ops->store, places, results, n};
    semel_status status = results != NULL ? be_ready(ops, rows[0]->consumer, err) : semel__fail_memory(err);
    if (status == SEMEL_OK) {
        status = semel__inbox_commands(&ops->inbox, &command, rows, n, places != NULL ? mark : NULL, &m, results, err);
        if (status == SEMEL_INVALID && n == 1 && err->cls != SEMEL_CLASS_BROKEN)
            status = mark_refused(&m, results, err);
    }
    for (size_t i = 0; (status == SEMEL_OK || status == SEMEL_UNKNOWN) && i < n; i++) {
        ret[i] = (struct semel_answer){.kind = kind_of(&results[i]),
                                       .judged = results[i].judged,
                                       .state = results[i].state};
        if (!results[i].done)
            put_why(ops, given, rows[i], &results[i].why, &ret[i]);
    }
    semel__free(results);
    return status;
}

/* Contention is waited out for a while; after a commit of unknown outcome the row is looked at again. */
static semel_status act_one(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                            struct semel_answer *ret, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (int i = 0; i < TRIES; i++) {
        semel__error_clear(err);
        status = act_on_rows(ops, given, &row, 1, NULL, ret, err);
        bool lost = status == SEMEL_UNKNOWN || status == SEMEL_CLOSED;
        if (lost && semel_store_reopen(ops->store, NULL) != SEMEL_OK)
            return status;
        if (!lost && status != SEMEL_RETRY)
            break;
    }
    return status;
}

/* Effects of a command on other messages: a forced retry leaves missing versions behind, a discard frees business keys
 * that others wait for (A6). */
static semel_status besides(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                            struct semel_buf *text, struct semel_error *err)
{
    struct semel_ops_facts facts;
    bool discard = given->kind == SEMEL_COMMAND_DISCARD;
    if (!discard && (!given->force || row->progress.error_class != SEMEL_CLASS_GAP))
        return SEMEL_OK;
    semel_status status = semel__ops_facts(ops, row, &facts, err);
    if (status == SEMEL_OK && discard)
        semel__put_freed(&facts, text);
    else if (status == SEMEL_OK)
        semel__put_stale(&facts, text);
    return status;
}

/* A corrected copy. After a commit of unknown outcome core looks again. */
static semel_status correct(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                            struct semel_answer *ret, struct semel_error *err)
{
    struct semel_ops_facts facts;
    struct semel_command_result result;
    struct semel_correction correction = {.command = {.kind = SEMEL_COMMAND_CORRECT,
                                                      .row = row,
                                                      .who = ops->who,
                                                      .reason = given->reason,
                                                      .force = given->force},
                                          .payload = given->payload};
    semel_status status = semel__ops_facts(ops, row, &facts, err);
    if (status == SEMEL_OK)
        status = be_ready(ops, row->consumer, err);
    if (status != SEMEL_OK)
        return status;
    const enum semel_order order = ops->policy.order;
    ops->policy.order = facts.policy->order; /* also where only the messages of the key have settled it */
    correction.business = facts.history->business;
    correction.n_business = facts.history->n_business;
    for (int i = 0; i < TRIES; i++) {
        semel__error_clear(err);
        status = semel__inbox_correct(&ops->inbox, &correction, &result, err);
        if (status != SEMEL_CLOSED && status != SEMEL_RETRY)
            break;
        if (status == SEMEL_CLOSED && semel_store_reopen(ops->store, NULL) != SEMEL_OK)
            break;
    }
    ops->policy.order = order;
    if (status != SEMEL_OK && (status != SEMEL_INVALID || err->cls == SEMEL_CLASS_BROKEN))
        return status; /* such as a role without the right: no message is to blame */
    *ret = (struct semel_answer){.kind = status == SEMEL_INVALID ? SEMEL_REFUSED
                                         : result.done           ? SEMEL_DID
                                                                 : SEMEL_SKIPPED,
                                 .judged = result.judged,
                                 .state = result.state};
    if (ret->kind != SEMEL_DID) {
        put_why(ops, given, row, err, ret);
        return SEMEL_OK;
    }
    semel__str_show(ret->copy, sizeof ret->copy, semel__str(correction.id));
    snprintf(ret->text, sizeof ret->text,
             "is corrected: %s has the new payload and is to run; the message itself is "
             "rejected, and keeps its payload",
             ret->copy);
    return SEMEL_OK;
}

static semel_status would(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                          struct semel_buf *text, struct semel_answer *ret, struct semel_error *err)
{
    struct semel_ops_facts facts;
    *ret = (struct semel_answer){.state = row->progress.state};
    semel_status status = semel__ops_facts(ops, row, &facts, err);
    if (status != SEMEL_OK)
        return status;
    ret->judged = semel__explain_would(&facts, given->kind, given->force, text);
    ret->kind = ret->judged == SEMEL_JUDGED_ALLOWED ? SEMEL_WOULD : SEMEL_WOULD_NOT;
    semel__str_show(ret->text, sizeof ret->text, semel__buf_str(text));
    return SEMEL_OK;
}

static semel_status act(struct semel_ops *ops, const struct semel_instruction *given, const struct semel_row *row,
                        struct semel_buf *more, struct semel_answer *ret, struct semel_error *err)
{
    static const char *const done[] = {"will be retried: it is due at once", "is discarded: it will never run",
                                       "is resolved: it is completed"};
    semel_status status = besides(ops, given, row, more, err);
    if (status == SEMEL_OK)
        status = act_one(ops, given, row, ret, err);
    if (status != SEMEL_OK || ret->kind != SEMEL_DID)
        return status;
    if (given->kind == SEMEL_COMMAND_RETRY && ret->state == SEMEL_ROW_WAITING)
        snprintf(
            ret->text, sizeof ret->text,
            "is judged again: it runs if nothing is missing any more, else it waits anew; --force runs it without");
    else
        snprintf(ret->text, sizeof ret->text, "%s%.*s", done[given->kind], (int)more->n,
                 more->p != NULL ? more->p : "");
    return SEMEL_OK;
}

semel_status semel__ops_command(struct semel_ops *ops, const struct semel_instruction *given,
                                const struct semel_row *row, bool dry_run, struct semel_answer *ret,
                                struct semel_error *err)
{
    struct semel_buf text;
    semel__buf_init(&text, sizeof ret->text);
    semel_status status = dry_run                                ? would(ops, given, row, &text, ret, err)
                          : given->kind == SEMEL_COMMAND_CORRECT ? correct(ops, given, row, ret, err)
                                                                 : act(ops, given, row, &text, ret, err);
    semel__buf_done(&text);
    return status;
}

/* ==== in bulk =======================================================================================
 *
 * Retry, discard or resolve what a filter matches, by a frozen selection (I16, P43); ops.h has the steps.
 *
 * Does a retry help? One message is tried alone first, and those that were released are looked at while the rest goes
 * on, so that a cause that is still there does not cost the whole selection another round.
 *
 * Invariants: a step handles at most one chunk, in one transaction with the marks of its places, and never waits: what
 * is marked was done, and nothing else was. Chunks follow the rate, ten per second. Every answer is counted, also when
 * its cause is one too many to be kept apart. Only messages that have run since their retry speak for or against the
 * cause, so that a consumer without workers is told apart from one whose cause is still there. At most WATCHED messages
 * are kept in mind.
 */

enum fate {
    PENDING, /* nobody has taken it yet */
    RUNNING,
    PARKED, /* it waits for another message: it proves nothing */
    ENDED,
    FAILED /* it ran and failed again; the cause is still there */
};

struct name {
    char bytes[SEMEL_ID_MAX];
    size_t n;
};

struct place { /* the name of a message */
    struct name consumer, source, id;
    bool used;
};

struct semel_bulk {
    struct semel_ops *ops;
    struct semel_selection selection;
    struct semel_instruction given;
    struct semel_bulk_options options;
    struct semel_arena kept, arena; /* the selection's texts; one step */
    bool over, probing;             /* probing: the next one that is retried is watched */
    struct place last;              /* the message that is watched */
    bool watching;
    int64_t watched_until_us;
    /* The chunk of the last step, and how many the next may have: fewer after contention. */
    struct semel_selected *chunk;
    struct semel_answer *answers;
    size_t n_chunk, chunk_max;
    int tries;
    int64_t next_us, checked_us; /* pace: when the next one may go; when the released were checked */
    int64_t since_check;
    int64_t first, again; /* the first place of this run; the last that was retried again (see handle_again) */
    const char *stopped;  /* why it ended early: a word for programs; NULL: it did not */
    char cause[700];      /* the same for people */
    /* What came of it. */
    struct semel_cause causes[CAUSES_MAX + 1]; /* the last one is for all others */
    size_t n_causes;
    int64_t n[SEMEL_REFUSED + 1];
    /* Those that were released. */
    struct place list[WATCHED];
    size_t put, at;      /* the next place to fill; the next to look at */
    bool failed[WINDOW]; /* the last that ended */
    size_t ended;
};

/* ---- before it begins ---------------------------------------------------------------------------- */

semel_status semel__bulk_check(const struct semel_filter *filter, enum semel_command_kind kind, struct semel_error *err)
{
    static const unsigned open = 1u << SEMEL_ROW_DEAD | 1u << SEMEL_ROW_QUARANTINED | 1u << SEMEL_ROW_UNKNOWN |
                                 1u << SEMEL_ROW_FAILED | 1u << SEMEL_ROW_WAITING;
    if (filter->states == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "status must say which messages: dead, failed, unknown, waiting or quarantined");
    if ((filter->states & ~open) != 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "status names what there is nothing to %s about: only dead, failed, unknown, waiting and "
                           "quarantined are unfinished",
                           semel__command_name(kind));
    return SEMEL_OK;
}

semel_status semel__bulk_count(struct semel_ops *ops, const struct semel_filter *filter, struct semel_groups *ret,
                               int64_t *ret_total, struct semel_error *err)
{
    *ret = (struct semel_groups){0};
    *ret_total = 0;
    semel_status status = semel_query_groups(ops->store, filter, SEMEL_SELECTION_MAX, SEMEL_CAUSES_COUNTED, ops->arena,
                                             &ret->groups, &ret->n, &ret->capped, err);
    for (size_t i = 0; status == SEMEL_OK && i < ret->n; i++)
        *ret_total += ret->groups[i].n;
    if (status == SEMEL_OK && ret->capped)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_REJECTED,
                           "more than %d messages would have to be looked at: say more, e.g. a consumer or a key",
                           SEMEL_SELECTION_MAX);
    return status;
}

semel_status semel__bulk_select(struct semel_ops *ops, const struct semel_filter *filter,
                                const struct semel_instruction *given, struct semel_selection *ret,
                                struct semel_error *err)
{
    int64_t now_us;
    *ret = (struct semel_selection){.command = semel__str(semel__command_name(given->kind)),
                                    .who = ops->who,
                                    .reason = given->reason,
                                    .force = given->force};
    semel_status status = semel_store_begin(ops->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = semel_query_select(ops->store, filter, SEMEL_SELECTION_MAX, now_us, ret, err);
    if (status == SEMEL_OK)
        return semel_store_commit(ops->store, err);
    semel_store_rollback(ops->store);
    return status;
}

semel_status semel__bulk_find(struct semel_ops *ops, int64_t number, struct semel_selection *ret, bool *ret_found,
                              struct semel_error *err)
{
    semel_status status = semel_query_selection(ops->store, number, ops->arena, ret, err);
    *ret_found = status == SEMEL_OK;
    return status == SEMEL_INVALID && err->cls == SEMEL_CLASS_PERMANENT ? SEMEL_OK : status;
}

static bool keep_selection(struct semel_bulk *b, const struct semel_selection *selection)
{
    b->selection = *selection;
    b->given.force = selection->force;
    return semel__arena_copy(&b->kept, selection->command, &b->selection.command) &&
           semel__arena_copy(&b->kept, selection->reason, &b->given.reason) &&
           semel__arena_copy(&b->kept, selection->who, &b->selection.who);
}

static bool read_word(struct semel_bulk *b)
{
    for (b->given.kind = SEMEL_COMMAND_RETRY; b->given.kind <= SEMEL_COMMAND_RESOLVE; b->given.kind++)
        if (semel__str_eqz(b->selection.command, semel__command_name(b->given.kind)))
            return true;
    return false;
}

semel_status semel__bulk_open(struct semel_bulk **ret, struct semel_ops *ops, const struct semel_selection *selection,
                              const struct semel_bulk_options *options, struct semel_error *err)
{
    struct semel_bulk *b = semel__calloc(1, sizeof *b);
    if (b == NULL)
        return semel__fail_memory(err);
    b->ops = ops;
    b->options = *options;
    b->chunk_max = CHUNK;
    b->answers = semel__calloc(CHUNK, sizeof *b->answers);
    semel__arena_init(&b->kept, (size_t)1 << 20);
    semel__arena_init(&b->arena, (size_t)128 << 20);
    bool kept = b->answers != NULL && keep_selection(b, selection);
    if (!kept || !read_word(b)) {
        semel__bulk_close(b);
        return !kept ? semel__fail_memory(err)
                     : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                                   "the selection is for a command that there is none of");
    }
    b->selection.reason = b->given.reason;
    if (b->options.rate == SEMEL_NONE)
        b->options.rate = b->given.kind == SEMEL_COMMAND_RETRY ? SEMEL_BULK_RATE : 0;
    b->probing = options->probe && b->given.kind == SEMEL_COMMAND_RETRY;
    *ret = b;
    return SEMEL_OK;
}

void semel__bulk_close(struct semel_bulk *bulk)
{
    if (bulk == NULL)
        return;
    semel__arena_done(&bulk->kept);
    semel__arena_done(&bulk->arena);
    semel__free(bulk->answers);
    semel__free(bulk);
}

void semel__bulk_stop(struct semel_bulk *b, const char *word, const char *cause)
{
    if (b->over)
        return;
    b->over = true;
    b->stopped = word;
    snprintf(b->cause, sizeof b->cause, "%s", cause);
}

/* ---- what came of it ----------------------------------------------------------------------------- */

static struct semel_cause *cause_of(struct semel_bulk *b, const struct semel_answer *answer)
{
    size_t i = 0;
    while (i < b->n_causes && (b->causes[i].kind != answer->kind || strcmp(b->causes[i].text, answer->cause) != 0))
        i++;
    struct semel_cause *cause = &b->causes[i];
    if (i < b->n_causes)
        return cause;
    cause->kind = answer->kind;
    b->n_causes += i < CAUSES_MAX;
    snprintf(cause->text, sizeof cause->text, "%s", i < CAUSES_MAX ? answer->cause : "other reasons");
    return cause;
}

static void count(struct semel_bulk *b, const struct semel_selected *row, const struct semel_answer *answer)
{
    struct semel_cause *cause = cause_of(b, answer);
    if (cause->n++ == 0)
        semel__str_show(cause->example, sizeof cause->example, row->id);
    b->n[answer->kind]++;
}

int64_t semel__bulk_n(const struct semel_bulk *bulk, enum semel_answer_kind kind)
{
    return bulk->n[kind];
}

const struct semel_cause *semel__bulk_causes(const struct semel_bulk *bulk, size_t *ret_n)
{
    *ret_n = bulk->n_causes + (bulk->causes[CAUSES_MAX].n > 0);
    return bulk->causes;
}

bool semel__bulk_over(const struct semel_bulk *bulk)
{
    return bulk->over;
}

const char *semel__bulk_stopped(const struct semel_bulk *bulk, const char **ret_cause)
{
    *ret_cause = bulk->cause;
    return bulk->stopped;
}

/* ---- the fate of one ----------------------------------------------------------------------------- */

static void name_put(struct name *name, struct semel_str s)
{
    name->n = s.n < sizeof name->bytes ? s.n : sizeof name->bytes;
    if (name->n > 0)
        memcpy(name->bytes, s.p, name->n);
}

static struct semel_str name_str(const struct name *name)
{
    return (struct semel_str){name->bytes, name->n};
}

static void place_put(struct place *place, const struct semel_selected *row)
{
    name_put(&place->consumer, row->consumer);
    name_put(&place->source, row->source);
    name_put(&place->id, row->id);
    place->used = true;
}

const struct semel_answer *semel__bulk_answer(const struct semel_bulk *bulk, size_t i, struct semel_str *ret_id,
                                              struct semel_str *ret_consumer)
{
    if (i >= bulk->n_chunk)
        return NULL;
    *ret_id = bulk->chunk[i].id;
    *ret_consumer = bulk->chunk[i].consumer;
    return &bulk->answers[i];
}

static enum fate judge(const struct semel_progress *progress)
{
    switch (progress->state) {
    case SEMEL_ROW_PROCESSING:
        return RUNNING;
    case SEMEL_ROW_WAITING:
        return progress->due_us == SEMEL_NONE || progress->error_class == SEMEL_CLASS_GAP ? PARKED : PENDING;
    case SEMEL_ROW_FAILED:
        return progress->attempts > progress->attempts_before ? FAILED : PENDING;
    case SEMEL_ROW_DEAD:
    case SEMEL_ROW_UNKNOWN:
        return FAILED;
    case SEMEL_ROW_ABSENT:
    case SEMEL_ROW_COMPLETED:
    case SEMEL_ROW_REJECTED:
    case SEMEL_ROW_STALE:
    case SEMEL_ROW_PREVENTED:
    case SEMEL_ROW_QUARANTINED:
    case SEMEL_ROW_COUNT:
        return ENDED;
    }
    return ENDED;
}

/* Reads the rows of messages of one consumer. */
static semel_status read_places(struct semel_bulk *b, struct place *const *places, size_t n, struct semel_fetched *ret,
                                struct semel_error *err)
{
    for (size_t i = 0; i < n; i++)
        ret[i] = (struct semel_fetched){.source = name_str(&places[i]->source), .id = name_str(&places[i]->id)};
    return semel_query_rows(b->ops->store, name_str(&places[0]->consumer), ret, n, &b->arena, err);
}

/* Gone is ended, too. `cause` has room for 600 bytes: class and text of what failed again. */
static enum fate fate_of(const struct semel_fetched *found, char *cause)
{
    char text[500];
    if (!found->present || found->damaged)
        return ENDED;
    semel__str_show(text, sizeof text, found->row.progress.error_text);
    snprintf(cause, 600, "%s%s%s", semel__class_name(found->row.progress.error_class), text[0] != '\0' ? ": " : "",
             text);
    return judge(&found->row.progress);
}

/* ---- does it help? ------------------------------------------------------------------------------- */

static void stop_again(struct semel_bulk *b, const char *what, const char *cause)
{
    char text[700];
    snprintf(text, sizeof text, "%s: %s", what, cause);
    semel__bulk_stop(b, "cause", text);
}

/* Watches the one that was retried alone. Returns how long to wait. */
static int64_t watch_step(struct semel_bulk *b)
{
    struct place *const last = &b->last;
    struct semel_fetched found;
    struct semel_error err = {0};
    char cause[600] = "";
    semel_status status = read_places(b, &last, 1, &found, &err);
    enum fate fate = status == SEMEL_OK ? fate_of(&found, cause) : PENDING;
    if (status != SEMEL_OK && status != SEMEL_RETRY) {
        semel__bulk_stop(b, "store", err.text);
        return 0;
    }
    bool open = status != SEMEL_OK || fate == PENDING || fate == RUNNING;
    if (open && semel__steady_us() < b->watched_until_us)
        return LOOK_STEP_US;
    b->watching = false;
    if (status != SEMEL_OK) {
        semel__bulk_stop(b, "store", err.text);
        return 0;
    }
    switch (fate) {
    case ENDED:
        b->probing = false;
        break;
    case PARKED: /* it proves nothing: the next one is tried */
        break;
    case FAILED:
        stop_again(b, "the cause is still there", cause);
        break;
    case RUNNING:
        semel__bulk_stop(b, "running",
                         "a worker has the first message and has not ended it within --wait; wait longer for it, or go "
                         "on with --no-probe");
        break;
    case PENDING:
        semel__bulk_stop(b, "no_worker",
                         "nobody has taken the first message within --wait: no worker seems to run for this "
                         "consumer; start one, or go on with --no-probe");
        break;
    }
    return 0;
}

static bool most_failed(const struct semel_bulk *b)
{
    size_t n = 0;
    for (size_t i = 0; i < WINDOW; i++)
        n += b->failed[i];
    return n >= ENOUGH;
}

/* Looks at some of those that were released, of one consumer. Stops when most of the last that ended have failed
 * again. */
static semel_status check_some(struct semel_bulk *b, struct semel_error *err)
{
    struct place *places[LOOKS];
    struct semel_fetched found[LOOKS];
    size_t n = 0;
    for (size_t i = 0; i < WATCHED && n < LOOKS; i++, b->at++) {
        struct place *place = &b->list[b->at % WATCHED];
        if (!place->used)
            continue;
        if (n > 0 && !semel__str_eq(name_str(&place->consumer), name_str(&places[0]->consumer)))
            break;
        places[n++] = place;
    }
    semel_status status = n > 0 ? read_places(b, places, n, found, err) : SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        char cause[600] = "";
        enum fate fate = fate_of(&found[i], cause);
        if (fate != ENDED && fate != FAILED)
            continue;
        places[i]->used = false;
        b->failed[b->ended++ % WINDOW] = fate == FAILED;
        if (most_failed(b)) {
            stop_again(b, "most of the last that ran have failed again", cause);
            break;
        }
    }
    return status;
}

/* From time to time: have those that were released failed again? */
static void check_released(struct semel_bulk *b)
{
    struct semel_error err = {0};
    int64_t now_us = semel__steady_us();
    if (b->since_check < CHECK_EVERY && now_us - b->checked_us < 1000000)
        return;
    b->since_check = 0;
    b->checked_us = now_us;
    semel_status status = check_some(b, &err);
    if (status != SEMEL_OK && status != SEMEL_RETRY)
        semel__bulk_stop(b, "store", err.text);
}

/* ---- a chunk ------------------------------------------------------------------------------------- */

/* At a rate, a tenth of a second's worth; while one is tried alone, that one. */
static size_t chunk_size(const struct semel_bulk *b)
{
    const int64_t rate = b->options.rate, paced = rate / CHUNKS_PER_S > 0 ? rate / CHUNKS_PER_S : 1;
    if (b->probing)
        return 1;
    return rate > 0 && (size_t)paced < b->chunk_max ? (size_t)paced : b->chunk_max;
}

/* Messages that an earlier run of this selection retried in vain, such as its probe, are dead letters again: when the
 * rest went well they are retried, too, but not those that this run has retried. If two processes resume at once they
 * share these messages: for the second one the row has changed. */
static semel_status choose_again(struct semel_bulk *b, struct semel_selected **ret, size_t *ret_n,
                                 struct semel_error *err)
{
    *ret_n = 0;
    if (b->given.kind != SEMEL_COMMAND_RETRY)
        return SEMEL_OK;
    return semel_query_again(b->ops->store, b->selection.number, b->again, b->first, chunk_size(b), &b->arena, ret,
                             ret_n, err);
}

/* The next places, of one consumer. */
static semel_status choose(struct semel_bulk *b, bool *ret_again, struct semel_selected **ret, size_t *ret_n,
                           struct semel_error *err)
{
    struct semel_selected *all = NULL;
    size_t n = 0, kept = 0;
    semel_status status = semel_query_selected(b->ops->store, b->selection.number, chunk_size(b), &b->arena, &all, &n,
                                               err);
    if (status == SEMEL_OK && b->first == 0)
        b->first = n > 0 ? all[0].place : INT64_MAX;
    *ret_again = status == SEMEL_OK && n == 0;
    if (*ret_again)
        status = choose_again(b, &all, &n, err);
    /* A retry leaves out none: who resumes it looks for places that were retried before the first that was not. */
    const bool in_order = b->given.kind == SEMEL_COMMAND_RETRY;
    for (size_t i = 0; status == SEMEL_OK && i < n && !(in_order && kept < i); i++)
        if (semel__str_eq(all[i].consumer, all[0].consumer))
            all[kept++] = all[i];
    *ret = all;
    *ret_n = kept;
    return status;
}

/* What the command must not meet in one transaction with others: see semel__inbox_commands. */
static bool apart(const struct semel_bulk *b, const struct semel_row *row)
{
    return row->n_wants > 0 || (b->given.kind == SEMEL_COMMAND_RESOLVE && row->version != SEMEL_NONE);
}

/* Reads the rows of the first n places; *ret_n of them go together. One that is gone, or damaged, has only its name:
 * core says which. updated_us is that of the selection, so that a row that has changed since is left alone. */
static semel_status read_rows(struct semel_bulk *b, const struct semel_selected *chosen, size_t n,
                              const struct semel_row ***ret, size_t *ret_n, struct semel_error *err)
{
    struct semel_fetched *found = semel__arena_alloc(&b->arena, n, sizeof *found);
    const struct semel_row **rows = semel__arena_alloc(&b->arena, n, sizeof *rows);
    if (found == NULL || rows == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        found[i] = (struct semel_fetched){.source = chosen[i].source, .id = chosen[i].id};
    semel_status status = semel_query_rows(b->ops->store, chosen[0].consumer, found, n, &b->arena, err);
    for (*ret_n = 0; status == SEMEL_OK && *ret_n < n; (*ret_n)++) {
        struct semel_fetched *one = &found[*ret_n];
        if (!one->present || one->damaged)
            one->row = (struct semel_row){.source = one->source, .id = one->id, .version = SEMEL_NONE};
        one->row.consumer = chosen[0].consumer;
        one->row.updated_us = chosen[*ret_n].updated_us;
        rows[*ret_n] = &one->row;
        if (apart(b, &one->row)) {
            *ret_n += *ret_n == 0;
            break;
        }
    }
    *ret = rows;
    return status;
}

static void was_changed(struct semel_answer *answer)
{
    answer->kind = SEMEL_SKIPPED;
    snprintf(answer->cause, sizeof answer->cause, "already handled: it has changed since it was chosen");
    snprintf(answer->text, sizeof answer->text, "was not touched: %s", answer->cause);
}

/* After a commit of unknown outcome: was it committed? The marks show it. */
static semel_status was_done(struct semel_bulk *b, const struct semel_selected *first, bool *ret_done,
                             struct semel_error *err)
{
    struct semel_selected *left = NULL;
    size_t n = 0;
    semel_status status = semel_store_reopen(b->ops->store, err);
    if (status == SEMEL_OK)
        status = semel_query_selected(b->ops->store, b->selection.number, 1, &b->arena, &left, &n, err);
    *ret_done = status == SEMEL_OK && (n == 0 || left[0].place != first->place);
    return status;
}

/* Gives the command to the first of the chosen, and marks their places. *ret_n = 0: nothing was done, and it may be
 * tried again, with fewer. */
static semel_status act_on(struct semel_bulk *b, const struct semel_selected *chosen, size_t n, bool again,
                           size_t *ret_n, struct semel_error *err)
{
    const struct semel_row **rows = NULL;
    int64_t *places = semel__arena_alloc(&b->arena, n, sizeof *places);
    bool done = true;
    if (places == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        places[i] = chosen[i].place;
    const struct semel_places_marked marked = {b->selection.number, places};
    semel_status status = read_rows(b, chosen, n, &rows, ret_n, err);
    if (status == SEMEL_OK)
        status = act_on_rows(b->ops, &b->given, rows, *ret_n, again ? NULL : &marked, b->answers, err);
    if (status == SEMEL_UNKNOWN && !again)
        status = was_done(b, chosen, &done, err);
    for (size_t i = 0; status == SEMEL_OK && done && i < *ret_n; i++)
        if (b->answers[i].judged == SEMEL_JUDGED_CHANGED)
            was_changed(&b->answers[i]);
    *ret_n = done ? *ret_n : 0;
    return status;
}

/* ---- working through it -------------------------------------------------------------------------- */

/* Messages that were skipped or refused do not count for the rate. */
static void went(struct semel_bulk *b, int64_t n)
{
    int64_t rate = b->options.rate, now_us = semel__steady_us(), step_us = rate > 0 ? n * 1000000 / rate : 0;
    bool steady = b->next_us <= now_us && now_us - b->next_us < step_us; /* what was waited too long is made good */
    b->next_us = (steady ? b->next_us : now_us) + step_us;
}

/* Counts the answers, and remembers those that were released. */
static void note(struct semel_bulk *b)
{
    int64_t done = 0;
    for (size_t i = 0; i < b->n_chunk; i++) {
        count(b, &b->chunk[i], &b->answers[i]);
        if (b->answers[i].kind != SEMEL_DID)
            continue;
        done++;
        if (b->given.kind != SEMEL_COMMAND_RETRY)
            continue;
        place_put(b->probing ? &b->last : &b->list[b->put++ % WATCHED],
                  &b->chunk[i]); /* a full list forgets the oldest */
        b->watching = b->probing;
    }
    if (done == 0)
        return;
    went(b, done);
    b->since_check += done;
    b->watched_until_us = semel__time_add(semel__steady_us(), b->options.wait_us);
    if (b->given.kind == SEMEL_COMMAND_RETRY && !b->watching)
        check_released(b);
}

/* What kept a chunk from being done may not be there for fewer: contention, or a row that the store refuses. */
static bool try_again(struct semel_bulk *b, semel_status status)
{
    bool lost = status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    if (lost)
        (void)semel_store_reopen(b->ops->store, NULL);
    else if (status != SEMEL_RETRY && (status != SEMEL_INVALID || b->chunk_max == 1))
        return false;
    if (b->chunk_max == 1 || lost)
        return ++b->tries < TRIES;
    b->chunk_max = status == SEMEL_INVALID ? 1 : b->chunk_max / 2;
    return true;
}

/* A chunk, from the selection to its marks. */
static semel_status handle_chunk(struct semel_bulk *b, struct semel_error *err)
{
    struct semel_selected *chosen = NULL;
    size_t n = 0, done = 0;
    bool again;
    semel_status status = choose(b, &again, &chosen, &n, err);
    b->over = status == SEMEL_OK && n == 0;
    if (status == SEMEL_OK && n > 0)
        status = act_on(b, chosen, n, again, &done, err);
    if (status != SEMEL_OK)
        return try_again(b, status) ? SEMEL_OK : status;
    if (done == 0)
        return SEMEL_OK;
    b->tries = 0;
    b->chunk_max = 2 * (done < n ? done : b->chunk_max); /* fewer where many go apart */
    b->chunk_max = b->chunk_max < CHUNK ? b->chunk_max : CHUNK;
    b->chunk = chosen;
    b->n_chunk = done;
    if (again)
        b->again = chosen[done - 1].place;
    note(b);
    return SEMEL_OK;
}

int64_t semel__bulk_step(struct semel_bulk *b)
{
    struct semel_error err = {0};
    int64_t wait_us = 0;
    b->n_chunk = 0;
    if (b->over)
        return -1;
    semel__arena_reset(&b->arena);
    if (b->watching) {
        wait_us = watch_step(b);
        return b->over ? -1 : wait_us;
    }
    wait_us = b->options.rate > 0 ? b->next_us - semel__steady_us() : 0;
    if (wait_us > 0)
        return wait_us;
    if (handle_chunk(b, &err) != SEMEL_OK)
        semel__bulk_stop(b, "store", err.text);
    return b->over ? -1 : 0;
}
