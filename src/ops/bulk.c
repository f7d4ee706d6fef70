/* SPDX-License-Identifier: MIT
 *
 * bulk.c: retry, discard or resolve what a filter matches, by a frozen selection (I16, P43); ops.h tells the steps.
 *
 * Does a retry help? One message is tried alone first, and those that were released are looked at while the rest goes
 * on, so that a cause that is still there does not cost the whole selection another round.
 *
 * Invariants: a step handles at most one message and never waits. Every answer is counted, also when its cause is one
 * too many to be kept apart. Only messages that have run since their retry speak for or against the cause, so that a
 * consumer without workers is told apart from one whose cause is still there. At most WATCHED messages are kept in
 * mind.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "ops/ops.h"

#define LOOKED_AT_MAX 5000000 /* rows that may be walked to find what matches */
#define CAUSES_MAX 50
#define LOOK_EVERY 20 /* messages, or a second */
#define LOOK_STEP_US INT64_C(50000)
#define TRIES 3
#define WATCHED 256
#define LOOKS 32 /* messages that are looked at in one go */
#define WINDOW 5 /* of the last so many that ended ... */
#define ENOUGH 3 /* ... so many failed again: stop */

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
    struct place last;              /* the message that the last step handled, or that is watched */
    bool watching, answered;
    int64_t watched_until_us;
    struct semel_answer answer;
    int64_t next_us, looked_us; /* pace: when the next one may go; when the released were looked at */
    int64_t since_look;
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
    static const unsigned open = 1u << SEMEL_STATE_DEAD | 1u << SEMEL_STATE_QUARANTINED | 1u << SEMEL_STATE_UNKNOWN |
                                 1u << SEMEL_STATE_FAILED | 1u << SEMEL_STATE_WAITING;
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
    semel_status status = semel_query_groups(ops->store, filter, LOOKED_AT_MAX, SEMEL_SELECTION_MAX + 1, ops->arena,
                                             &ret->groups, &ret->n, &ret->capped, err);
    for (size_t i = 0; status == SEMEL_OK && i < ret->n; i++)
        *ret_total += ret->groups[i].n;
    if (status == SEMEL_OK && ret->capped)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_REJECTED,
                           "more than %d messages would have to be looked at: say more, e.g. a consumer or a key",
                           LOOKED_AT_MAX);
    if (status == SEMEL_OK && *ret_total > SEMEL_SELECTION_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_REJECTED,
                           "more than %d messages match: choose fewer, e.g. by newer or error", SEMEL_SELECTION_MAX);
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
    semel__arena_init(&b->kept, (size_t)1 << 20);
    semel__arena_init(&b->arena, (size_t)16 << 20);
    bool kept = keep_selection(b, selection);
    if (!kept || !read_word(b)) {
        semel__bulk_close(b);
        return !kept ? semel__fail_memory(err)
                     : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                                   "the selection is for a command that there is none of");
    }
    b->selection.reason = b->given.reason;
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

const struct semel_answer *semel__bulk_answer(const struct semel_bulk *bulk, struct semel_str *ret_id,
                                              struct semel_str *ret_consumer)
{
    *ret_id = name_str(&bulk->last.id);
    *ret_consumer = name_str(&bulk->last.consumer);
    return bulk->answered ? &bulk->answer : NULL;
}

static enum fate judge(const struct semel_progress *progress)
{
    switch (progress->state) {
    case SEMEL_STATE_PROCESSING:
        return RUNNING;
    case SEMEL_STATE_WAITING:
        return progress->due_us == SEMEL_NONE || progress->error_class == SEMEL_CLASS_GAP ? PARKED : PENDING;
    case SEMEL_STATE_FAILED:
        return progress->attempts > progress->attempts_before ? FAILED : PENDING;
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_UNKNOWN:
        return FAILED;
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_COUNT:
        return ENDED;
    }
    return ENDED;
}

/* The row of that name, without its payload; NULL: there is none that can be read. */
static semel_status read_row(struct semel_bulk *b, struct semel_str consumer, struct semel_str source,
                             struct semel_str id, struct semel_row **ret, struct semel_error *err)
{
    struct semel_filter filter = {.consumer = consumer,
                                  .source = source,
                                  .id = id,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    size_t n = 0, damaged;
    semel_status status = semel_query_list(b->ops->store, &filter, SEMEL_NONE, 1, false, &b->arena, ret, &n, &damaged,
                                           err);
    *ret = n == 1 ? *ret : NULL;
    return status;
}

/* `cause` has room for 600 bytes: class and text of what failed again. */
static semel_status look_at(struct semel_bulk *b, const struct place *place, enum fate *ret, char *cause,
                            struct semel_error *err)
{
    struct semel_row *row = NULL;
    char text[500];
    semel_status status = read_row(b, name_str(&place->consumer), name_str(&place->source), name_str(&place->id), &row,
                                   err);
    *ret = ENDED; /* gone is ended, too */
    if (row == NULL)
        return status;
    *ret = judge(&row->progress);
    semel__str_show(text, sizeof text, row->progress.error_text);
    snprintf(cause, 600, "%s%s%s", semel__class_name(row->progress.error_class), text[0] != '\0' ? ": " : "", text);
    return status;
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
    enum fate fate = PENDING;
    struct semel_error err = {0};
    char cause[600] = "";
    semel_status status = look_at(b, &b->last, &fate, cause, &err);
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

/* Looks at some of those that were released. Stops when most of the last that ended have failed again. */
static semel_status look_at_some(struct semel_bulk *b, struct semel_error *err)
{
    size_t looks = 0;
    for (size_t i = 0; i < WATCHED && looks < LOOKS; i++, b->at++) {
        struct place *place = &b->list[b->at % WATCHED];
        enum fate fate;
        char cause[600] = "";
        if (!place->used)
            continue;
        semel_status status = look_at(b, place, &fate, cause, err);
        if (status != SEMEL_OK)
            return status;
        looks++;
        if (fate != ENDED && fate != FAILED)
            continue;
        place->used = false;
        b->failed[b->ended++ % WINDOW] = fate == FAILED;
        if (most_failed(b)) {
            stop_again(b, "most of the last that ran have failed again", cause);
            return SEMEL_OK;
        }
    }
    return SEMEL_OK;
}

/* From time to time: have those that were released failed again? */
static void look_back(struct semel_bulk *b)
{
    struct semel_error err = {0};
    int64_t now_us = semel__steady_us();
    if (++b->since_look < LOOK_EVERY && now_us - b->looked_us < 1000000)
        return;
    b->since_look = 0;
    b->looked_us = now_us;
    semel_status status = look_at_some(b, &err);
    if (status != SEMEL_OK && status != SEMEL_RETRY)
        semel__bulk_stop(b, "store", err.text);
}

/* ---- working through it -------------------------------------------------------------------------- */

static semel_status mark(struct semel_bulk *b, int64_t place, struct semel_error *err)
{
    struct semel_store *store = b->ops->store;
    semel_status status = SEMEL_OK;
    for (int i = 0; i < TRIES; i++) {
        int64_t now_us;
        status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
        if (status == SEMEL_OK) {
            status = semel_query_mark(store, b->selection.number, place, semel__str(semel__answer_name(b->answer.kind)),
                                      err);
            if (status == SEMEL_OK)
                status = semel_store_commit(store, err);
            else
                semel_store_rollback(store);
        }
        if (status == SEMEL_UNKNOWN || status == SEMEL_CLOSED)
            (void)semel_store_reopen(store, NULL); /* a place that is marked already stays as it is */
        else if (status != SEMEL_RETRY)
            break;
    }
    return status;
}

static void was_changed(struct semel_answer *answer)
{
    answer->kind = SEMEL_SKIPPED;
    answer->judged = SEMEL_JUDGED_CHANGED;
    snprintf(answer->cause, sizeof answer->cause, "already handled: it has changed since it was chosen");
    snprintf(answer->text, sizeof answer->text, "was not touched: %s", answer->cause);
}

/* Reads the row of the selection and gives it the command, unless it has changed since it was chosen. */
static semel_status act_on(struct semel_bulk *b, const struct semel_selected *chosen, struct semel_error *err)
{
    struct semel_row *row = NULL;
    struct semel_row bare = {.consumer = chosen->consumer,
                             .source = chosen->source,
                             .id = chosen->id,
                             .version = SEMEL_NONE,
                             .updated_us = chosen->updated_us}; /* it is gone, or damaged: core says which */
    b->answer = (struct semel_answer){0};
    semel_status status = read_row(b, chosen->consumer, chosen->source, chosen->id, &row, err);
    if (status != SEMEL_OK)
        return status;
    bool same = row == NULL || row->updated_us == chosen->updated_us;
    if (same)
        status = semel__ops_act(b->ops, &b->given, row != NULL ? row : &bare, &b->answer, err);
    if (!same || (status == SEMEL_OK && b->answer.judged == SEMEL_JUDGED_CHANGED))
        was_changed(&b->answer);
    return status;
}

/* What was skipped or refused costs nobody anything, and is not waited for. */
static void went(struct semel_bulk *b)
{
    int64_t rate = b->options.rate, now_us = semel__steady_us(), step_us = rate > 0 ? 1000000 / rate : 0;
    bool steady = b->next_us <= now_us && now_us - b->next_us < step_us; /* what was waited too long is made good */
    b->next_us = (steady ? b->next_us : now_us) + step_us;
}

/* What an earlier run of this selection retried in vain, such as its probe, is a dead letter again: when the rest went
 * well, it is retried, too. Not what this run has retried. Two who resume at once share them: the row has changed for
 * the second. */
static semel_status handle_again(struct semel_bulk *b, struct semel_selected **ret, size_t *ret_n,
                                 struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    *ret_n = 0;
    if (b->given.kind == SEMEL_COMMAND_RETRY)
        status = semel_query_again(b->ops->store, b->selection.number, b->again, b->first, 1, &b->arena, ret, ret_n,
                                   err);
    if (status == SEMEL_OK && *ret_n > 0)
        b->again = (*ret)[0].place;
    return status;
}

/* One message, from the selection to its mark. */
static semel_status handle_one(struct semel_bulk *b, struct semel_error *err)
{
    struct semel_selected *rows = NULL;
    size_t n = 0;
    semel_status status = semel_query_selected(b->ops->store, b->selection.number, 1, &b->arena, &rows, &n, err);
    if (status == SEMEL_OK && b->first == 0)
        b->first = n > 0 ? rows[0].place : INT64_MAX;
    const bool again = status == SEMEL_OK && n == 0;
    if (again)
        status = handle_again(b, &rows, &n, err);
    b->over = status == SEMEL_OK && n == 0;
    if (status != SEMEL_OK || n == 0)
        return status;
    status = act_on(b, &rows[0], err);
    if (status != SEMEL_OK)
        return status;
    place_put(&b->last, &rows[0]);
    b->answered = true;
    count(b, &rows[0], &b->answer);
    if (!again)
        status = mark(b, rows[0].place, err);
    if (status != SEMEL_OK || b->answer.kind != SEMEL_DID)
        return status;
    went(b);
    if (b->given.kind != SEMEL_COMMAND_RETRY)
        return SEMEL_OK;
    b->watching = b->probing;
    b->watched_until_us = semel__time_add(semel__steady_us(), b->options.wait_us);
    if (b->watching)
        return SEMEL_OK;
    place_put(&b->list[b->put++ % WATCHED], &rows[0]); /* a full list forgets the oldest */
    look_back(b);
    return SEMEL_OK;
}

int64_t semel__bulk_step(struct semel_bulk *b)
{
    struct semel_error err = {0};
    int64_t wait_us = 0;
    b->answered = false;
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
    if (handle_one(b, &err) != SEMEL_OK)
        semel__bulk_stop(b, "store", err.text);
    return b->over ? -1 : 0;
}
