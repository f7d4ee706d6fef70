/* SPDX-License-Identifier: MIT
 *
 * inbox_watch.c: does a retry help? One message is tried alone first, and those that were released are looked at while
 * the rest goes on, so that a cause that is still there does not cost the whole selection another round (I16).
 *
 * Signals are kept, not handled: a command stops between two messages and never within one.
 *
 * Invariants: nothing is written here. Only messages that have run since their retry count, so that a consumer without
 * workers is told apart from one whose cause is still there. At most WATCHED messages are kept in mind.
 */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "base/error.h"
#include "cli/inbox.h"

#define STEP_US INT64_C(50000)
#define WATCHED 256
#define LOOKS 32 /* messages that are looked at in one go */
#define WINDOW 5 /* of the last so many that ended ... */
#define ENOUGH 3 /* ... so many failed again: stop */

/* ---- waiting ------------------------------------------------------------------------------------- */

static bool interrupted;

static void signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

void inbox_catch(void)
{
    sigset_t set;
    signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL); /* NOLINT(concurrency-mt-unsafe): there are no threads */
}

bool inbox_pause(int64_t us)
{
    sigset_t set;
    struct timespec span = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    signals(&set);
    if (!interrupted)
        interrupted = sigtimedwait(&set, NULL, &span) > 0;
    return interrupted;
}

bool inbox_interrupted(void)
{
    return inbox_pause(0);
}

/* ---- the fate of one ----------------------------------------------------------------------------- */

static enum inbox_fate judge(const struct semel_live *live)
{
    switch (live->state) {
    case SEMEL_STATE_PROCESSING:
        return INBOX_RUNNING;
    case SEMEL_STATE_WAITING:
        return live->due_us == SEMEL_NONE || live->error_class == SEMEL_CLASS_GAP ? INBOX_PARKED : INBOX_PENDING;
    case SEMEL_STATE_FAILED:
        return live->attempts > live->attempts_before ? INBOX_FAILED : INBOX_PENDING;
    case SEMEL_STATE_DEAD:
    case SEMEL_STATE_UNKNOWN:
        return INBOX_FAILED;
    case SEMEL_STATE_ABSENT:
    case SEMEL_STATE_COMPLETED:
    case SEMEL_STATE_REJECTED:
    case SEMEL_STATE_STALE:
    case SEMEL_STATE_PREVENTED:
    case SEMEL_STATE_QUARANTINED:
    case SEMEL_STATE_COUNT:
        return INBOX_ENDED;
    }
    return INBOX_ENDED;
}

static semel_status look_at(struct inbox_actor *actor, const struct semel_selected *row, struct inbox_sight *ret,
                            struct semel_error *err)
{
    struct semel_filter filter = {.consumer = row->consumer,
                                  .source = row->source,
                                  .id = row->id,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_arena arena;
    struct semel_row *rows = NULL;
    size_t n = 0, damaged;
    char text[500];
    semel__arena_init(&arena, (size_t)16 << 20);
    semel_status status = semel_look_list(actor->store, &filter, SEMEL_NONE, 1, false, &arena, &rows, &n, &damaged,
                                          err);
    *ret = (struct inbox_sight){.fate = INBOX_ENDED}; /* gone is ended, too */
    if (status == SEMEL_OK && n == 1) {
        const struct semel_live *live = &rows[0].live;
        ret->fate = judge(live);
        semel__str_show(text, sizeof text, live->error_text);
        snprintf(ret->cause, sizeof ret->cause, "%s%s%s", semel__class_name(live->error_class),
                 text[0] != '\0' ? ": " : "", text);
    }
    semel__arena_done(&arena);
    return status;
}

semel_status inbox_probe(struct inbox_actor *actor, const struct semel_selected *row, int64_t wait_us,
                         struct inbox_sight *ret, struct semel_error *err)
{
    for (int64_t waited_us = 0;; waited_us += STEP_US) {
        semel_status status = look_at(actor, row, ret, err);
        if (status != SEMEL_OK && status != SEMEL_RETRY)
            return status;
        bool open = status != SEMEL_OK || ret->fate == INBOX_PENDING || ret->fate == INBOX_RUNNING;
        if (!open || waited_us >= wait_us || inbox_pause(STEP_US))
            return status;
    }
}

/* ---- those that were released -------------------------------------------------------------------- */

struct name {
    char bytes[SEMEL_ID_MAX];
    size_t n;
};

struct watched {
    struct name consumer, source, id;
    bool used;
};

struct inbox_watch {
    struct watched list[WATCHED];
    size_t put, at;      /* the next place to fill; the next to look at */
    bool failed[WINDOW]; /* the last that ended */
    size_t ended;
};

struct inbox_watch *inbox_watch_new(void)
{
    return semel__calloc(1, sizeof(struct inbox_watch));
}

void inbox_watch_free(struct inbox_watch *watch)
{
    semel__free(watch);
}

static void keep(struct name *name, struct semel_str s)
{
    name->n = s.n < sizeof name->bytes ? s.n : sizeof name->bytes;
    if (name->n > 0)
        memcpy(name->bytes, s.p, name->n);
}

static struct semel_str kept(const struct name *name)
{
    return (struct semel_str){name->bytes, name->n};
}

/* A full list forgets the oldest. */
void inbox_watch_add(struct inbox_watch *watch, const struct semel_selected *row)
{
    struct watched *w = &watch->list[watch->put++ % WATCHED];
    keep(&w->consumer, row->consumer);
    keep(&w->source, row->source);
    keep(&w->id, row->id);
    w->used = true;
}

static bool most_failed(const struct inbox_watch *watch)
{
    size_t n = 0;
    for (size_t i = 0; i < WINDOW; i++)
        n += watch->failed[i];
    return n >= ENOUGH;
}

semel_status inbox_watch_look(struct inbox_watch *watch, struct inbox_actor *actor, struct inbox_sight *ret,
                              struct semel_error *err)
{
    size_t looks = 0;
    *ret = (struct inbox_sight){.fate = INBOX_PENDING};
    for (size_t i = 0; i < WATCHED && looks < LOOKS; i++, watch->at++) {
        struct watched *w = &watch->list[watch->at % WATCHED];
        if (!w->used)
            continue;
        struct semel_selected row = {.consumer = kept(&w->consumer), .source = kept(&w->source), .id = kept(&w->id)};
        semel_status status = look_at(actor, &row, ret, err);
        if (status != SEMEL_OK)
            return status;
        looks++;
        if (ret->fate != INBOX_ENDED && ret->fate != INBOX_FAILED)
            continue;
        w->used = false;
        watch->failed[watch->ended++ % WINDOW] = ret->fate == INBOX_FAILED;
        if (most_failed(watch)) {
            ret->fate = INBOX_FAILED;
            return SEMEL_OK;
        }
    }
    ret->fate = INBOX_PENDING;
    return SEMEL_OK;
}
