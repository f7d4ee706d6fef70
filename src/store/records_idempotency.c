/* SPDX-License-Identifier: MIT
 *
 * records_idempotency.c: idempotency keys, and operators' queries of them. The rules are core's (keys.h); the
 * statements ensure that they hold in a race.
 *
 * Invariants: a claim inserts first, and reads only rows that it has not inserted: in the same trip where there is
 * probably a row, else in one more; it changes an existing row only if that is still as it was judged. An end names the
 * token, so that it changes the row of that claim or none. A replay writes nothing. Operators' queries are bounded
 * (P44), and give answers only on request.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "core/keys.h"
#include "store/records.h"

struct args {
    struct semel_str lease_owner;
    int64_t now_us, lease_until_us, limit, token;
    struct semel_str scope, key, after_key, statuses; /* what operators ask, from here on */
    int64_t before_us, cap;
    bool with_answer, joined;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, lease_owner, lease_owner),
    SQL_FIELD(struct args, now_us, now),
    SQL_FIELD(struct args, lease_until_us, lease_until),
    SQL_FIELD(struct args, limit, limit),
    SQL_FIELD(struct args, token, token),
    SQL_FIELD(struct args, scope, scope),
    SQL_FIELD(struct args, key, key),
    SQL_FIELD(struct args, after_key, after_key),
    SQL_FIELD(struct args, statuses, statuses),
    SQL_FIELD(struct args, before_us, before),
    SQL_FIELD(struct args, cap, cap),
    SQL_FIELD(struct args, with_answer, with_payload),
    SQL_FIELD(struct args, joined, joined),
};

#define ROW struct semel_idempotency
static const struct sql_field row_fields[] = {
    SQL_MUST(ROW, scope, scope, 1, SEMEL_ID_MAX),
    SQL_MUST(ROW, key, key, 1, SEMEL_ID_MAX),
    SQL_MUST(ROW, status, status, 0, 0),
    SQL_MUST(ROW, token, token, 1, INT64_MAX),
    SQL_MAYBE(ROW, fp, fingerprint, 0, 0),
    SQL_MUST(ROW, created_us, created_at, 0, 0),
    SQL_MUST(ROW, updated_us, updated_at, 0, 0),
    SQL_MAYBE(ROW, lease_until_us, lease_until, 0, 0),
    SQL_SHOWN(ROW, lease_owner, lease_owner, 512),
    SQL_MUST(ROW, answer_us, answer_us, 0, INT64_MAX),
    SQL_MUST(ROW, keep_us, keep_us, 0, INT64_MAX),
    SQL_SHOWN(ROW, cause, cause, 1024),
    SQL_MAYBE(ROW, code, code, 100, 999),
    SQL_MAYBE(ROW, headers, headers, 0, 8 * SEMEL_ANSWER_HEADERS_MAX),
    SQL_MAYBE(ROW, body, body, 0, SEMEL_ANSWER_BODY_MAX),
    SQL_MAYBE(ROW, completed_us, completed_at, 0, 0),
    SQL_MAYBE(ROW, answer_until_us, answer_until, 0, 0),
    SQL_MAYBE(ROW, key_until_us, key_until, 0, 0),
    SQL_SHOWN(ROW, origin, origin, 1024),
    SQL_SHOWN(ROW, rule, rule, 1024),
    SQL_SHOWN(ROW, traceparent, traceparent, 1024),
};

#define CLAIM struct semel_key_claim
static const struct sql_field claim_fields[] = {
    SQL_FIELD(CLAIM, want.scope, scope),
    SQL_FIELD(CLAIM, want.key, key),
    SQL_FIELD(CLAIM, token, token),
    SQL_FIELD(CLAIM, want.fp, fingerprint),
    SQL_FIELD(CLAIM, want.lease_until_us, lease_until),
    SQL_FIELD(CLAIM, want.answer_us, answer_us),
    SQL_FIELD(CLAIM, want.keep_us, keep_us),
    SQL_FIELD(CLAIM, want.origin, origin),
    SQL_FIELD(CLAIM, want.rule, rule),
    SQL_FIELD(CLAIM, want.traceparent, traceparent),
    SQL_FIELD(CLAIM, row.token, lease_token), /* as it was found, from here on */
    SQL_FIELD(CLAIM, row.status, was),
    SQL_FIELD(CLAIM, row.lease_until_us, before),
};

static const struct sql_field put_fields[] = {SQL_MUST(struct args, token, token, 1, INT64_MAX)};

static const struct sql_field ending_fields[] = {
    SQL_FIELD(struct semel_key_ending, token, token), SQL_FIELD(struct semel_key_ending, cause, cause),
    SQL_FIELD(struct semel_key_ending, code, code),   SQL_FIELD(struct semel_key_ending, headers, headers),
    SQL_FIELD(struct semel_key_ending, body, body),
};

/* ---- reading ------------------------------------------------------------------------------------- */

struct reading {
    struct semel_arena *arena;
    struct semel_idempotency *row;
};

/* A status that no key has is damage. */
static semel_status read_row(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    const struct reading *r = ctx;
    struct semel_idempotency *into = r->row;
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(row_fields), r->arena, into, err);
    if (status != SEMEL_OK)
        return status;
    bool completed = into->status == SEMEL_ROW_COMPLETED;
    if ((!completed && into->status != SEMEL_ROW_PROCESSING && into->status != SEMEL_ROW_UNKNOWN) ||
        (completed && (into->code == SEMEL_NONE || into->key_until_us == SEMEL_NONE)))
        return semel__db_damage(row, "a key's status is none that it can have", err);
    return SEMEL_OK;
}

static semel_status key_read(struct semel_store *store, struct semel_str scope, struct semel_str key,
                             struct semel_arena *arena, struct semel_idempotency *ret, struct semel_error *err)
{
    struct semel_key_claim claim = {.want = {.scope = scope, .key = key}};
    struct reading reading = {arena, ret};
    *ret = (struct semel_idempotency){.status = SEMEL_ROW_ABSENT};
    return semel__db_do(semel__db_of(store), "reading a key", SQL_idempotency_find, NULL,
                        SQL_EACH(claim_fields, &claim, 1), read_row, &reading, err);
}

static semel_status key_held(struct semel_store *store, int64_t token, struct semel_arena *arena,
                             struct semel_idempotency *ret, struct semel_error *err)
{
    struct args args = {.token = token};
    struct reading reading = {arena, ret};
    *ret = (struct semel_idempotency){.status = SEMEL_ROW_ABSENT};
    return semel__db_do(semel__db_of(store), "reading a key by its token", SQL_idempotency_held,
                        SQL_ONE(args_fields, &args), NULL, read_row, &reading, err);
}

/* ---- claims -------------------------------------------------------------------------------------- */

/* Finds the claims whose tokens were inserted. The tokens come in the order of the claims. */
struct put {
    struct semel_key_claim *claims;
    size_t n, next;
};

static semel_status read_put(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct put *put = ctx;
    struct args found;
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(put_fields), NULL, &found, err);
    if (status != SEMEL_OK)
        return status;
    for (size_t i = 0; i < put->n; i++, put->next = (put->next + 1) % put->n)
        if (put->claims[put->next].token == found.token) {
            put->claims[put->next].row.token = found.token;
            return SEMEL_OK;
        }
    return semel__db_damage(row, "a token that was inserted is none of these claims'", err);
}

struct finding {
    struct semel_arena *arena;
    struct semel_key_claim *const *claims; /* the items */
};

static semel_status read_found(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    const struct finding *f = ctx;
    struct semel_key_claim *claim = f->claims[item];
    struct reading reading = {f->arena, &claim->row};
    semel_status status = read_row(&reading, 0, row, err);
    claim->seen = status != SEMEL_OK || claim->row.token != claim->token; /* SQLite shows what was just inserted, too */
    return status;
}

static size_t list_claims(const struct semel_key_batch *batch, bool all, struct semel_key_claim *list[SEMEL_KEYS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_claims; i++)
        if (all || batch->claims[i].row.token != batch->claims[i].token)
            list[n++] = &batch->claims[i];
    return n;
}

/* The rows of those that were not inserted. If the connection is lost here, those that were are committed: in doubt. */
static semel_status find_rest(struct semel_store *store, const struct semel_key_batch *batch, struct semel_error *err)
{
    struct semel_key_claim *list[SEMEL_KEYS_MAX];
    const struct finding finding = {batch->arena, list};
    const size_t n = list_claims(batch, false, list);
    if (n == 0)
        return SEMEL_OK;
    semel_status status = semel__db_do(semel__db_of(store), "reading keys", SQL_idempotency_find, NULL,
                                       SQL_EACH_OF(claim_fields, list, n), read_found, (void *)&finding, err);
    if (status == SEMEL_CLOSED && store->ended) {
        if (err != NULL)
            err->status = SEMEL_UNKNOWN;
        status = SEMEL_UNKNOWN;
    }
    return status;
}

/* Sets the claim's row to the values that the statement has written. */
static void taken(struct semel_key_claim *claim, struct semel_str owner, int64_t now_us)
{
    claim->row = claim->want;
    claim->row.status = SEMEL_ROW_PROCESSING;
    claim->row.token = claim->token;
    claim->row.lease_owner = owner;
    claim->row.created_us = claim->row.updated_us = now_us;
    claim->row.code = claim->row.completed_us = claim->row.answer_until_us = claim->row.key_until_us = SEMEL_NONE;
}

static void busy(struct semel_key_claim *claim)
{
    claim->act = SEMEL_KEY_BUSY;
    claim->why = SEMEL_STR("running");
}

/* Gives the claims `again`, which may run again, the rows that they found, if those are still as they were judged. */
static semel_status retake(struct sql *db, struct semel_key_claim **again, size_t n, const struct args *args,
                           struct semel_error *err)
{
    struct semel_key_claim *list[SEMEL_KEYS_MAX];
    bool done[SEMEL_KEYS_MAX] = {false};
    struct sql_noted noted = {done, sizeof(done[0]), 0, true};
    memcpy(list, again, n * sizeof(list[0]));
    semel_status status = semel__db_do(db, "taking keys over", SQL_idempotency_retake, SQL_ONE(args_fields, args),
                                       SQL_EACH_OF(claim_fields, list, n), semel__db_read_noted, &noted, err);
    for (size_t i = 0; status == SEMEL_OK && i < n; i++) {
        if (done[i])
            taken(again[i], args->lease_owner, args->now_us);
        else
            busy(again[i]);
    }
    return status;
}

/* Judges a claim. RUN with another's row: the claim may change that row. */
static void judge(struct semel_key_claim *claim, struct semel_str owner, int64_t now_us)
{
    if (claim->row.token == claim->token) {
        taken(claim, owner, now_us);
        claim->act = SEMEL_KEY_RUN;
        claim->why = SEMEL_STR("new");
    } else if (claim->row.status == SEMEL_ROW_ABSENT) {
        busy(claim); /* another transaction has inserted it, or is about to */
    } else {
        claim->act = semel__key_judge(&claim->row, &claim->want.fp, now_us, &claim->why);
    }
}

static semel_status judge_claims(struct semel_store *store, const struct semel_key_batch *batch,
                                 const struct args *args, struct semel_error *err)
{
    struct semel_key_claim *again[SEMEL_KEYS_MAX];
    size_t n_again = 0;
    for (size_t i = 0; i < batch->n_claims; i++) {
        struct semel_key_claim *claim = &batch->claims[i];
        judge(claim, args->lease_owner, args->now_us);
        if (claim->act != SEMEL_KEY_RUN || claim->row.token == claim->token)
            continue;
        if (store->ended) { /* nothing can be taken over any more */
            claim->again = true;
            busy(claim);
            continue;
        }
        claim->token = semel__token_new(batch->tokens, batch->rng, claim->effect, args->now_us,
                                        semel__token_us(claim->row.token));
        again[n_again++] = claim;
    }
    return n_again > 0 ? retake(semel__db_of(store), again, n_again, args, err) : SEMEL_OK;
}

/* ---- ends ---------------------------------------------------------------------------------------- */

/* The ends of one kind. Their tokens ascend: the statement finds an item by halving. */
struct ends_of {
    struct semel_key_ending *list[SEMEL_KEYS_MAX];
    size_t n;
    bool applied[SEMEL_KEYS_MAX];
    struct sql_noted noted;
};

static int by_token(const void *a, const void *b)
{
    const struct semel_key_ending *const *x = a, *const *y = b;
    return ((*x)->token > (*y)->token) - ((*x)->token < (*y)->token);
}

/* Impatient ones get the locks of their rows first, and are patient then. */
static semel_status lock_free(struct sql *db, const struct semel_key_batch *batch, struct semel_error *err)
{
    struct semel_key_ending *list[SEMEL_KEYS_MAX];
    bool locked[SEMEL_KEYS_MAX] = {false};
    struct sql_noted noted = {locked, sizeof(bool), 0, true};
    size_t n = 0;
    for (size_t i = 0; i < batch->n_ends; i++)
        if (batch->ends[i].impatient)
            list[n++] = &batch->ends[i];
    if (n == 0 || !semel__db_needs(db, SQL_idempotency_lock_free))
        return SEMEL_OK;
    qsort(list, n, sizeof(list[0]), by_token);
    semel_status status = semel__db_do(db, "locking keys", SQL_idempotency_lock_free, NULL,
                                       SQL_EACH_OF(ending_fields, list, n), semel__db_read_noted, &noted, err);
    for (size_t k = 0; k < n; k++)
        list[k]->impatient = !locked[k];
    return status;
}

static void run_ends(struct sql *db, const struct semel_key_batch *batch, const struct sql_set *once,
                     struct ends_of kinds[3])
{
    static const enum sql_id ids[] = {[SEMEL_KEY_END_COMPLETED] = SQL_idempotency_finish,
                                      [SEMEL_KEY_END_RELEASED] = SQL_idempotency_release,
                                      [SEMEL_KEY_END_UNKNOWN] = SQL_idempotency_unknown};
    for (size_t e = 0; e < 3; e++)
        kinds[e].n = 0;
    for (size_t i = 0; i < batch->n_ends; i++) {
        struct ends_of *of = &kinds[batch->ends[i].end];
        batch->ends[i].applied = false;
        if (batch->ends[i].impatient && semel__db_needs(db, SQL_idempotency_lock_free))
            continue;
        of->applied[of->n] = false;
        of->list[of->n++] = &batch->ends[i];
    }
    for (size_t e = 0; e < 3; e++) {
        struct ends_of *of = &kinds[e];
        of->noted = (struct sql_noted){of->applied, sizeof(bool), 0, true};
        qsort(of->list, of->n, sizeof(of->list[0]), by_token);
        if (of->n > 0)
            semel__db_run(db, ids[e], once, SQL_EACH_OF(ending_fields, of->list, of->n), semel__db_read_noted,
                          &of->noted);
    }
}

static void note_ends(struct ends_of kinds[3])
{
    for (size_t e = 0; e < 3; e++)
        for (size_t i = 0; i < kinds[e].n; i++)
            kinds[e].list[i]->applied = kinds[e].applied[i];
}

/* ---- both, and leases ---------------------------------------------------------------------------- */

static semel_status key_write(struct semel_store *store, const struct semel_key_batch *batch, int64_t now_us,
                              struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct args args = {.lease_owner = batch->owner, .now_us = now_us, .joined = store->joined};
    struct ends_of kinds[3];
    struct semel_key_claim *claims = batch->claims;
    struct put put = {.claims = claims, .n = batch->n_claims};
    struct semel_key_claim *list[SEMEL_KEYS_MAX];
    struct finding finding = {batch->arena, list};
    assert(store->in_tx && batch->n_ends <= SEMEL_KEYS_MAX && batch->n_claims <= SEMEL_KEYS_MAX);
    for (size_t i = 0; i < batch->n_claims; i++) {
        claims[i].token = semel__token_new(batch->tokens, batch->rng, claims[i].effect, now_us, SEMEL_NONE);
        claims[i].row = (struct semel_idempotency){.status = SEMEL_ROW_ABSENT};
        claims[i].again = claims[i].seen = false;
    }
    semel_status status = lock_free(db, batch, err);
    if (status != SEMEL_OK)
        return status;
    semel__db_start(db, batch->n_claims > 0 ? "claiming keys" : "ending keys");
    run_ends(db, batch, SQL_ONE(args_fields, &args), kinds);
    const size_t n_list = batch->n_claims > 0 ? list_claims(batch, true, list) : 0;
    const bool retried = batch->retried && semel__db_needs(db, SQL_idempotency_put_retried);
    if (n_list > 0)
        semel__db_run(db, retried ? SQL_idempotency_put_retried : SQL_idempotency_put, SQL_ONE(args_fields, &args),
                      SQL_EACH_OF(claim_fields, list, n_list), read_put, &put);
    if (n_list > 0 && batch->look)
        semel__db_run(db, SQL_idempotency_find, NULL, SQL_EACH_OF(claim_fields, list, n_list), read_found, &finding);
    status = semel__db_flush(db, err);
    if (status == SEMEL_OK && !batch->look)
        status = find_rest(store, batch, err);
    if (status != SEMEL_OK)
        return status;
    note_ends(kinds);
    return judge_claims(store, batch, &args, err);
}

static semel_status key_renew(struct semel_store *store, int64_t token, int64_t until_us, bool *ret_renewed,
                              struct semel_error *err)
{
    struct args args = {.token = token, .lease_until_us = until_us};
    struct sql_noted noted = {ret_renewed, sizeof(*ret_renewed), 0, true};
    *ret_renewed = false;
    return semel__db_do(semel__db_of(store), "renewing a key's lease", SQL_idempotency_renew, NULL,
                        SQL_EACH(args_fields, &args, 1), semel__db_read_noted, &noted, err);
}

static semel_status count_changes(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    (void)item, (void)err;
    *(int64_t *)ctx += row->changes;
    return SEMEL_OK;
}

static semel_status key_renew_all(struct semel_store *store, struct semel_str owner, int64_t until_us, int64_t *ret_n,
                                  struct semel_error *err)
{
    struct args args = {.lease_owner = owner, .lease_until_us = until_us};
    *ret_n = 0;
    return semel__db_do(semel__db_of(store), "renewing the leases of keys", SQL_idempotency_renew_all,
                        SQL_ONE(args_fields, &args), NULL, count_changes, ret_n, err);
}

static semel_status key_keep(struct semel_store *store, int64_t now_us, int64_t max, int64_t *ret_n,
                             struct semel_error *err)
{
    static const enum sql_id ids[] = {SQL_idempotency_expire_atomic, SQL_idempotency_expire,
                                      SQL_idempotency_forget_body, SQL_idempotency_forget_key};
    struct sql *db = semel__db_of(store);
    struct args args = {.now_us = now_us, .limit = max};
    *ret_n = 0;
    assert(store->in_tx);
    semel__db_start(db, "housekeeping of keys");
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        semel__db_run(db, ids[i], SQL_ONE(args_fields, &args), NULL, count_changes, ret_n);
    return semel__db_flush(db, err);
}

/* ---- what operators ask -------------------------------------------------------------------------- */

struct listing {
    struct semel_arena *arena;
    struct sql_list list;
};

static semel_status read_shown(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field bytes[] = {SQL_SHOWN(struct semel_key_row, bytes, bytes, 0)};
    struct listing *l = ctx;
    struct semel_key_row read = {0};
    struct reading reading = {l->arena, &read.row};
    semel_status status = read_row(&reading, item, row, err);
    if (status == SEMEL_OK)
        status = semel__db_fill(row, SQL_FIELDS(bytes), NULL, &read, err);
    return status == SEMEL_OK ? semel__db_list_put(&l->list, &read, err) : status;
}

static semel_status read_list(struct semel_store *store, enum sql_id id, const struct args *args,
                              struct semel_arena *arena, struct semel_key_row **ret, size_t *ret_n,
                              struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    struct listing l = {.arena = arena, .list = {.arena = arena, .size = sizeof(**ret)}};
    if (db == NULL)
        return SEMEL_INVALID;
    semel_status status = semel__db_do(db, "reading keys", id, SQL_ONE(args_fields, args), NULL, read_shown, &l, err);
    status = semel__db_list_end(&l.list, status, err);
    if (status == SEMEL_OK) {
        *ret = l.list.items;
        *ret_n = l.list.n;
    }
    return status;
}

semel_status semel_query_keys(struct semel_store *store, const struct semel_key_filter *filter, int64_t after_token,
                              struct semel_str after_key, size_t max, struct semel_arena *arena,
                              struct semel_key_row **ret, size_t *ret_n, struct semel_error *err)
{
    char statuses[RECORD_STATUSES];
    const bool completed = (filter->statuses & 1u << SEMEL_ROW_COMPLETED) != 0;
    const struct args args = {.scope = filter->scope,
                              .after_key = after_key,
                              .statuses = semel__record_statuses(filter->statuses, statuses),
                              .token = after_token != SEMEL_NONE ? after_token : 0,
                              .before_us = filter->before_us,
                              .lease_until_us = filter->expired_us,
                              .limit = semel__db_limit(max)};
    assert(!completed || semel__str_given(filter->scope));
    return read_list(store, completed ? SQL_idempotency_list_completed : SQL_idempotency_list, &args, arena, ret, ret_n,
                     err);
}

semel_status semel_query_key(struct semel_store *store, struct semel_str scope, struct semel_str key, bool with_answer,
                             struct semel_arena *arena, struct semel_key_row **ret, struct semel_error *err)
{
    const struct args args = {.scope = scope, .key = key, .with_answer = with_answer};
    size_t n = 0;
    semel_status status = read_list(store, SQL_idempotency_show, &args, arena, ret, &n, err);
    if (n == 0)
        *ret = NULL;
    return status;
}

semel_status semel_query_key_lock(struct semel_store *store, struct semel_str scope, struct semel_str key,
                                  struct semel_error *err)
{
    const struct args args = {.scope = scope, .key = key};
    assert(store->in_tx);
    return semel__db_do(semel__db_of(store), "locking a key", SQL_idempotency_lock, SQL_ONE(args_fields, &args), NULL,
                        NULL, NULL, err);
}

semel_status semel_query_key_acts(struct semel_store *store, struct semel_str scope, struct semel_str key, size_t max,
                                  struct semel_arena *arena, struct semel_act_line **ret, size_t *ret_n,
                                  struct semel_error *err)
{
    struct sql *db = semel__db_query(store, err);
    const struct args args = {.scope = scope, .key = key, .limit = semel__db_limit(max)};
    return db != NULL
               ? semel__record_acts(db, SQL_idempotency_acts, SQL_ONE(args_fields, &args), arena, ret, ret_n, err)
               : SEMEL_INVALID;
}

struct counting {
    struct semel_arena *arena;
    struct semel_keys_state *state;
};

/* The rare ones are one. */
static semel_status read_cause(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    struct one {
        struct semel_str cause;
        int64_t n, oldest_us;
    };
    static const struct sql_field fields[] = {
        SQL_SHOWN(struct one, cause, cause, SEMEL_CAUSE_MAX),
        SQL_SHOWN(struct one, n, count, 0),
        SQL_SHOWN(struct one, oldest_us, oldest_at, 0),
    };
    const struct counting *c = ctx;
    struct semel_keys_state *s = c->state;
    struct one one = {.oldest_us = SEMEL_NONE};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(fields), s->n_causes < SEMEL_CAUSES_MAX - 1 ? c->arena : NULL,
                                         &one, err);
    if (status != SEMEL_OK)
        return status;
    s->unknown += one.n;
    if (s->unknown_us == SEMEL_NONE || (one.oldest_us != SEMEL_NONE && one.oldest_us < s->unknown_us))
        s->unknown_us = one.oldest_us;
    if (s->n_causes < SEMEL_CAUSES_MAX - 1)
        s->causes[s->n_causes].cause = semel__str_given(one.cause) ? one.cause : SEMEL_STR("unknown");
    s->causes[s->n_causes].n += one.n;
    s->n_causes += s->n_causes < SEMEL_CAUSES_MAX - 1;
    return SEMEL_OK;
}

semel_status semel_query_keys_state(struct semel_store *store, int64_t cap, struct semel_arena *arena,
                                    struct semel_keys_state *ret, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_SHOWN(struct semel_keys_state, processing, running_n, 0),
        SQL_SHOWN(struct semel_keys_state, stuck, stuck_n, 0),
        SQL_SHOWN(struct semel_keys_state, stuck_us, oldest_at, 0),
    };
    struct sql *db = semel__db_query(store, err);
    const struct args args = {.cap = cap, .now_us = semel__now(&semel__clock_real)};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    struct counting counting = {arena, ret};
    struct sql_into into = {SQL_FIELDS(fields), NULL, ret, sizeof *ret, 0};
    *ret = (struct semel_keys_state){.stuck_us = SEMEL_NONE, .unknown_us = SEMEL_NONE};
    if (db == NULL)
        return SEMEL_INVALID;
    semel__db_start(db, "counting keys");
    semel__db_run(db, SQL_idempotency_count, once, NULL, semel__db_read_item, &into);
    semel__db_run(db, SQL_idempotency_causes, once, NULL, read_cause, &counting);
    semel_status status = semel__db_flush(db, err);
    ret->n_causes += ret->causes[SEMEL_CAUSES_MAX - 1].n > 0;
    return status;
}

const struct semel_key_ops semel__record_keys = {
    .write = key_write,
    .renew = key_renew,
    .renew_all = key_renew_all,
    .keep = key_keep,
    .read = key_read,
    .held = key_held,
};
