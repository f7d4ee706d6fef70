/* SPDX-License-Identifier: MIT
 *
 * sql.c: the handler `sql`: made from a description, run by core, freed; and the values of a message by its rules.
 * See sql.h.
 *
 * A set goes to the database as one statement per source: the ids that come back are those of one source. Core
 * decides which messages are in a call, and checks that each is named exactly once (core/inbox.c).
 *
 * Invariants: everything that a run needs is checked when the handler is made; a run allocates from the scratch arena
 * only, which is empty at its beginning; without an open transaction nothing is run.
 */
#include <stdio.h>
#include <strings.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/json.h"
#include "base/mem.h"
#include "core/extract.h"
#include "handler/sql_private.h"
#include "store/pg_store.h"

/* ==== rules and values ==============================================================================
 *
 * Rules, and the values of a message by them.
 *
 * The rules are those of core/extract.h, as far as a stored message can satisfy them: its properties are not stored.
 * In addition there are the fields of the message itself.
 *
 * Invariants: a text is UTF-8 without NUL, which no database can store in text; otherwise the message fails
 * permanently, with that reason; nothing of a message is quoted (P71).
 */

#define OPTIONAL "optional:"
#define SHOWN 64

/* ---- rules --------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    enum sql_field field;
} fields[] = {
    {"id", SQL_FIELD_ID},
    {"source", SQL_FIELD_SOURCE},
    {"type", SQL_FIELD_TYPE},
    {"order_key", SQL_FIELD_ORDER_KEY},
    {"version", SQL_FIELD_VERSION},
    {"time", SQL_FIELD_TIME},
    {"position", SQL_FIELD_POSITION},
    {"traceparent", SQL_FIELD_TRACEPARENT},
    {"digest", SQL_FIELD_DIGEST},
    {"headers", SQL_FIELD_HEADERS},
    {"body", SQL_FIELD_BODY},
    {"bytes", SQL_FIELD_BYTES},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

static bool parse_field(struct semel_str text, enum sql_field *ret)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (semel__str_eqz(text, fields[i].word)) {
            *ret = fields[i].field;
            return true;
        }
    return false;
}

static bool begins(struct semel_str text, struct semel_str with)
{
    return text.n >= with.n && memcmp(text.p, with.p, with.n) == 0;
}

static semel_status parse_named(struct semel_str text, struct sql_rule *ret, struct semel_error *err)
{
    struct semel_rule parsed;
    semel_status status = semel__rule_parse(text, &parsed, err);
    if (status != SEMEL_OK)
        return status;
    ret->field = parsed.kind == SEMEL_RULE_JSON ? SQL_FIELD_JSON : SQL_FIELD_HEADER;
    ret->name = parsed.name;
    return SEMEL_OK;
}

/* INVALID, BROKEN: `text` is not a rule. Strings are borrowed from it. */
static semel_status rule_parse(struct semel_str text, struct sql_rule *ret, struct semel_error *err)
{
    const struct semel_str optional = SEMEL_STR(OPTIONAL);
    struct semel_str rest = text;
    char shown[SHOWN];
    semel__str_show(shown, sizeof shown, text);
    *ret = (struct sql_rule){.text = text, .optional = begins(text, optional)};
    if (ret->optional)
        rest = (struct semel_str){text.p + optional.n, text.n - optional.n};
    if (parse_field(rest, &ret->field))
        return SEMEL_OK;
    if (begins(rest, SEMEL_STR("json:")) || begins(rest, SEMEL_STR("header:")))
        return parse_named(rest, ret, err);
    if (begins(rest, SEMEL_STR("property:")))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "\"%s\": properties are not kept with a message; use header:NAME", shown);
    return semel__fail(
        err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
        "\"%s\" is no rule; there are id, source, type, order_key, version, time, position, traceparent, "
        "digest, headers, header:NAME, body, bytes and json:/POINTER",
        shown);
}

/* ---- values -------------------------------------------------------------------------------------- */

struct taking {
    const struct semel__msg *msg;
    struct semel_arena *arena;
    const struct sql_rule *rule;
    size_t place; /* of the value, from 1 */
    bool parsed;  /* the payload is JSON */
};

static semel_status refuse(const struct taking *t, const char *what, struct semel_error *err)
{
    char shown[SHOWN];
    semel__str_show(shown, sizeof shown, t->rule->text);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "value $%zu, %s: %s", t->place, shown, what);
}

/* A fingerprint of this kind was made from the parsed payload. */
static semel_status want_json(struct taking *t, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_error why;
    if (t->parsed || t->msg->fp.kind == SEMEL_FP_JSON)
        return SEMEL_OK;
    semel_status status = semel__json_parse(&json, t->msg->payload, t->msg->payload.n, &why);
    semel__json_free(json);
    t->parsed = status == SEMEL_OK;
    if (status == SEMEL_INVALID) {
        char what[160];
        snprintf(what, sizeof what, "the payload is not JSON: %.120s", why.text);
        return refuse(t, what, err);
    }
    if (status != SEMEL_OK && err != NULL)
        *err = why;
    return status;
}

/* From the text of one JSON value. false: no memory, or, with *ret_sound false, not JSON. */
static bool json_value(struct semel_str raw, struct semel_arena *arena, struct sql_value *ret, bool *ret_sound)
{
    *ret_sound = true;
    *ret = (struct sql_value){SQL_TEXT, raw};
    switch (raw.p[0]) {
    case '"':
        return semel__json_decode(raw, arena, &ret->text, ret_sound);
    case '{':
    case '[':
        return true;
    case 't':
    case 'f':
        ret->kind = SQL_BOOLEAN;
        return true;
    case 'n':
        *ret = (struct sql_value){SQL_NULL, {0}};
        return true;
    default:
        ret->kind = SQL_INTEGER;
        for (size_t i = 0; i < raw.n; i++)
            if (raw.p[i] == '.' || raw.p[i] == 'e' || raw.p[i] == 'E')
                ret->kind = SQL_REAL;
        return true;
    }
}

static semel_status from_raw(struct taking *t, struct semel_str raw, struct sql_value *ret, struct semel_error *err)
{
    bool sound = true;
    if (!semel__str_given(raw))
        return SEMEL_OK;
    if (json_value(raw, t->arena, ret, &sound))
        return SEMEL_OK;
    return sound ? semel__fail_memory(err) : refuse(t, "a string in it is malformed", err);
}

static semel_status fill_json(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    semel_status status = want_json(t, err);
    if (status != SEMEL_OK)
        return status;
    return from_raw(t, semel__json_find(t->msg->payload, t->rule->name), ret, err);
}

/* Several headers with one name are an array, of which the first counts; a value that is not text is {"hex": ...}
 * (core/headers.h). */
static semel_status fill_header(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    struct semel_str raw = {0}, name, value;
    size_t from = 0;
    while (raw.n == 0 && semel__str_given(t->msg->headers) && semel__json_next(t->msg->headers, &from, &name, &value))
        if (name.n == t->rule->name.n && strncasecmp(name.p, t->rule->name.p, name.n) == 0)
            raw = value;
    if (raw.n > 0 && raw.p[0] == '[')
        raw = semel__json_find(raw, SEMEL_STR("/0"));
    if (raw.n > 0 && raw.p[0] == '{')
        return refuse(t, "the header is not UTF-8 text", err);
    return from_raw(t, raw, ret, err);
}

static semel_status fill_made(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    char text[2 * SEMEL_SHA256 + 1];
    unsigned char digest[SEMEL_SHA256];
    const struct semel__msg *msg = t->msg;
    enum sql_kind kind = SQL_TEXT;
    if (t->rule->field == SQL_FIELD_DIGEST) {
        if (!semel__sha256(&msg->payload, 1, digest))
            return semel__fail_memory(err);
        semel__hex(digest, sizeof digest, text);
    } else if (t->rule->field == SQL_FIELD_TIME) {
        if (msg->message_time_us == SEMEL_NONE)
            return SEMEL_OK;
        semel__time_format(msg->message_time_us, text);
    } else {
        if (msg->version == SEMEL_NONE)
            return SEMEL_OK;
        snprintf(text, sizeof text, "%lld", (long long)msg->version);
        kind = SQL_INTEGER;
    }
    ret->kind = kind;
    return semel__arena_copy(t->arena, semel__str(text), &ret->text) ? SEMEL_OK : semel__fail_memory(err);
}

static struct semel_str plain_field(const struct semel__msg *msg, enum sql_field field)
{
    switch (field) {
    case SQL_FIELD_ID:
        return msg->id;
    case SQL_FIELD_SOURCE:
        return semel__str_given(msg->source) ? msg->source : SEMEL_STR("");
    case SQL_FIELD_TYPE:
        return msg->type;
    case SQL_FIELD_ORDER_KEY:
        return msg->order_key;
    case SQL_FIELD_POSITION:
        return msg->position;
    case SQL_FIELD_TRACEPARENT:
        return msg->traceparent;
    case SQL_FIELD_HEADERS:
        return msg->headers;
    case SQL_FIELD_BODY:
    case SQL_FIELD_BYTES:
        return semel__str_given(msg->payload) ? msg->payload : SEMEL_STR("");
    case SQL_FIELD_VERSION:
    case SQL_FIELD_TIME:
    case SQL_FIELD_DIGEST:
    case SQL_FIELD_HEADER:
    case SQL_FIELD_JSON:
        break;
    }
    return (struct semel_str){0};
}

/* A missing value stays NULL. */
static semel_status take(struct taking *t, struct sql_value *ret, struct semel_error *err)
{
    switch (t->rule->field) {
    case SQL_FIELD_JSON:
        return fill_json(t, ret, err);
    case SQL_FIELD_HEADER:
        return fill_header(t, ret, err);
    case SQL_FIELD_VERSION:
    case SQL_FIELD_TIME:
    case SQL_FIELD_DIGEST:
        return fill_made(t, ret, err);
    case SQL_FIELD_ID:
    case SQL_FIELD_SOURCE:
    case SQL_FIELD_TYPE:
    case SQL_FIELD_ORDER_KEY:
    case SQL_FIELD_POSITION:
    case SQL_FIELD_TRACEPARENT:
    case SQL_FIELD_HEADERS:
    case SQL_FIELD_BODY:
    case SQL_FIELD_BYTES:
        break;
    }
    ret->text = plain_field(t->msg, t->rule->field);
    if (semel__str_given(ret->text))
        ret->kind = t->rule->field == SQL_FIELD_BYTES ? SQL_BYTES : SQL_TEXT;
    return SEMEL_OK;
}

/* The values of one message, n of them. INVALID, PERMANENT: the message lacks a value that a rule needs. */
static semel_status fill_values(const struct sql_rule *rules, size_t n, const struct semel__msg *msg,
                                struct semel_arena *arena, struct sql_value *ret, struct semel_error *err)
{
    struct taking t = {.msg = msg, .arena = arena};
    for (size_t i = 0; i < n; i++) {
        t.rule = &rules[i];
        t.place = i + 1;
        ret[i] = (struct sql_value){SQL_NULL, {0}};
        semel_status status = take(&t, &ret[i], err);
        if (status != SEMEL_OK)
            return status;
        if (ret[i].kind == SQL_NULL && !t.rule->optional)
            return refuse(&t, "the message has none; write " OPTIONAL " before the rule if that may be", err);
        if (ret[i].kind != SQL_NULL && ret[i].kind != SQL_BYTES && !semel__utf8_valid(ret[i].text))
            return refuse(&t, "it is not UTF-8 text without NUL", err);
    }
    return SEMEL_OK;
}

/* ==== the handler ================================================================================ */

#define OWN_MAX (4u << 20)
#define SCRATCH_MAX ((size_t)1 << 30)

/* ---- descriptions -------------------------------------------------------------------------------- */

static semel_status check_counts(const struct sql_shape *shape, const struct semel_sql_desc *desc,
                                 struct semel_error *err)
{
    char shown[64];
    if ((size_t)shape->n_params > desc->n_values)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: $%d is used, and there are %zu values; give one for each parameter",
                           shape->n_params, desc->n_values);
    for (size_t i = 0; i < desc->n_values; i++)
        if ((shape->used >> i & 1) == 0) {
            semel__str_show(shown, sizeof shown, desc->values[i]);
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "values: the statement has no $%zu for the value \"%s\"; use it, or leave it out", i + 1,
                               shown);
        }
    return SEMEL_OK;
}

static semel_status parse_rule(struct semel_str rule, size_t i, struct sql_rule *ret, struct semel_error *err)
{
    struct semel_error why;
    return rule_parse(rule, ret, &why) == SEMEL_OK
               ? SEMEL_OK
               : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "values, $%zu: %s", i + 1, why.text);
}

semel_status semel__sql_check_value(struct semel_str rule, size_t i, struct semel_error *err)
{
    struct sql_rule ignored;
    return parse_rule(rule, i, &ignored, err);
}

static semel_status parse_rules(const struct semel_sql_desc *desc, struct sql_rule *rules, struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (size_t i = 0; i < desc->n_values && status == SEMEL_OK; i++)
        status = parse_rule(desc->values[i], i, &rules[i], err);
    return status;
}

/* Checks the statement of a set, except for what only the server can check. */
static semel_status check_set(const struct sql_shape *shape, const struct semel_sql_desc *desc,
                              enum semel_sql_dialect dialect, const struct sql_rule *rules, struct semel_error *err)
{
    bool id = false;
    if (dialect == SEMEL_SQL_SQLITE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "mode: sets need PostgreSQL; on SQLite choose `each`, which waits for no answer either");
    if (shape->word == SQL_CALL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "statement: CALL returns no rows, and a set returns the id of each message that it has "
                           "handled; write SELECT ... FROM a function, or choose `each`");
    for (size_t i = 0; i < desc->n_values; i++)
        id = id || rules[i].field == SQL_FIELD_ID;
    if (!id)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "values: `id` is not among them; a set returns the id of each message that it has handled");
    return SEMEL_OK;
}

static semel_status check(const struct semel_sql_desc *desc, enum semel_sql_dialect dialect, struct sql_rule *rules,
                          struct semel_error *err)
{
    struct sql_shape shape;
    if (desc->n_values > SEMEL_SQL_VALUES_MAX)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "values: there are %zu; at most %d are allowed",
                           desc->n_values, SEMEL_SQL_VALUES_MAX);
    semel_status status = semel__sql_scan(desc->statement, dialect, &shape, err);
    if (status == SEMEL_OK)
        status = parse_rules(desc, rules, err);
    if (status == SEMEL_OK)
        status = check_counts(&shape, desc, err);
    if (status == SEMEL_OK && desc->mode == SEMEL_SQL_SET)
        status = check_set(&shape, desc, dialect, rules, err);
    return status;
}

semel_status semel__sql_check(const struct semel_sql_desc *desc, enum semel_sql_dialect dialect,
                              struct semel_error *err)
{
    struct sql_rule rules[SEMEL_SQL_VALUES_MAX];
    return check(desc, dialect, rules, err);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

static semel_status want_transaction(const struct semel_store *store, struct semel_error *err)
{
    if (store->in_tx)
        return SEMEL_OK;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "the handler sql needs a consumer whose effect is atomic: it writes in the inbox's transaction");
}

static semel_status run_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                             struct semel__reply *reply, struct semel_error *err)
{
    struct semel_sql *sql = ctx;
    struct sql_value values[SEMEL_SQL_VALUES_MAX];
    (void)attempt;
    (void)reply;
    semel__arena_reset(&sql->scratch);
    semel_status status = want_transaction(store, err);
    if (status == SEMEL_OK)
        status = fill_values(sql->rules, sql->n, msg, &sql->scratch, values, err);
    return status == SEMEL_OK ? sql->backend->each(sql, store, values, err) : status;
}

/* Core calls `each` of a set-based handler only for effects outside, and SQL has none. */
static semel_status refuse_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                                struct semel__reply *reply, struct semel_error *err)
{
    (void)ctx;
    (void)store;
    (void)msg;
    (void)attempt;
    (void)reply;
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "a set-based handler needs a consumer whose effect is atomic");
}

/* Items of one key are neighbours. */
static bool key_repeated(const struct semel__msg *const *msgs, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (semel__str_given(msgs[i]->order_key) && semel__str_eq(msgs[i]->order_key, msgs[i - 1]->order_key))
            return true;
    return false;
}

/* One statement for the messages of the first one's source, in their order; the others move to the front. */
static semel_status run_source(struct semel_sql *sql, struct semel_store *store, const struct semel__msg **msgs,
                               size_t *n, const struct sql_names *names, struct semel_error *err)
{
    struct semel_str source = msgs[0]->source;
    size_t taken = 0, left = 0;
    struct sql_value *values = semel__arena_alloc(&sql->scratch, *n * sql->n, sizeof *values);
    semel_status status = values != NULL ? SEMEL_OK : semel__fail_memory(err);
    for (size_t i = 0; status == SEMEL_OK && i < *n; i++) {
        if (semel__str_eq(msgs[i]->source, source))
            status = fill_values(sql->rules, sql->n, msgs[i], &sql->scratch, values + taken++ * sql->n, err);
        else
            msgs[left++] = msgs[i];
    }
    *n = left;
    return status == SEMEL_OK ? sql->backend->set(sql, store, source, values, taken, names, err) : status;
}

semel_status semel__sql_run_set(struct semel_sql *sql, struct semel_store *store, const struct semel__msg *const *msgs,
                                size_t n, semel_sql_name name, void *ctx, struct semel_error *err)
{
    const struct sql_names names = {name, ctx};
    semel__arena_reset(&sql->scratch);
    semel_status status = want_transaction(store, err);
    if (status == SEMEL_OK && sql->ordered && key_repeated(msgs, n))
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "two messages of one key were in one set");
    if (status != SEMEL_OK)
        return status;
    const struct semel__msg **left = semel__arena_alloc(&sql->scratch, n, sizeof *left);
    if (left == NULL)
        return semel__fail_memory(err);
    memcpy(left, msgs, n * sizeof *left);
    while (status == SEMEL_OK && n > 0)
        status = run_source(sql, store, left, &n, &names, err);
    return status;
}

static void add_to_set(void *ctx, struct semel_str source, struct semel_str id)
{
    semel__set_add(ctx, source, id);
}

static semel_status run_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                            struct semel_set *set, struct semel_error *err)
{
    return semel__sql_run_set(ctx, store, msgs, n, add_to_set, set, err);
}

/* ---- its life ------------------------------------------------------------------------------------ */

static const struct sql_backend *backend_of(const struct semel_store *store)
{
#ifdef SEMEL_WITH_POSTGRES
    if (semel__pg_is(store))
        return &semel__sql_pg;
#endif
#ifdef SEMEL_WITH_SQLITE
    if (strcmp(store->ops->name, "sqlite") == 0)
        return &semel__sql_sqlite;
#endif
    return NULL;
}

/* Parses the rules again, so that they borrow from our copies. */
static semel_status copy(struct semel_sql *sql, const struct semel_sql_desc *desc, struct semel_error *err)
{
    struct semel_str text;
    bool copied = semel__arena_copy(&sql->own, desc->statement, &text);
    semel_status status = SEMEL_OK;
    for (size_t i = 0; copied && status == SEMEL_OK && i < desc->n_values; i++) {
        struct semel_str rule;
        copied = semel__arena_copy(&sql->own, desc->values[i], &rule);
        if (copied)
            status = rule_parse(rule, &sql->rules[i], err);
    }
    if (!copied)
        return semel__fail_memory(err);
    sql->text = text.p;
    sql->n = desc->n_values;
    return status;
}

static semel_status fill(struct semel_sql *sql, const struct semel_sql_desc *desc, struct semel_store *store,
                         struct semel_error *err)
{
    bool set = desc->mode == SEMEL_SQL_SET;
    semel_status status = check(desc, sql->backend->dialect, sql->rules, err);
    if (status == SEMEL_OK)
        status = copy(sql, desc, err);
    if (status != SEMEL_OK)
        return status;
    sql->mode = desc->mode;
    sql->ordered = desc->ordered;
    sql->handler = (struct semel__handler){.ctx = sql,
                                           .each = set ? refuse_each : run_each,
                                           .set = set ? run_set : NULL};
    return sql->backend->check(sql, store, err);
}

semel_status semel__sql_handler_new(struct semel_sql **ret, const struct semel_sql_desc *desc,
                                    struct semel_store *store, struct semel_error *err)
{
    const struct sql_backend *backend = backend_of(store);
    if (backend == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store %s has no SQL: the handler sql needs PostgreSQL or SQLite", store->ops->name);
    struct semel_sql *sql = semel__calloc(1, sizeof *sql);
    if (sql == NULL)
        return semel__fail_memory(err);
    sql->backend = backend;
    semel__arena_init(&sql->own, OWN_MAX);
    semel__arena_init(&sql->scratch, SCRATCH_MAX);
    semel_status status = fill(sql, desc, store, err);
    if (status == SEMEL_OK)
        *ret = sql;
    else
        semel__sql_handler_free(sql);
    return status;
}

void semel__sql_handler_free(struct semel_sql *sql)
{
    if (sql == NULL)
        return;
    sql->backend->done(sql);
    semel__arena_done(&sql->own);
    semel__arena_done(&sql->scratch);
    semel__free(sql);
}

const struct semel__handler *semel__sql_handler(const struct semel_sql *sql)
{
    return &sql->handler;
}
