/* SPDX-License-Identifier: MIT
 *
 * ext_func.c: the scalar functions: the ends of messages and leases, the tick, the outbox, keys, settings.
 *
 * Invariants: a fenced call answers 0 and is no error; every other failure is one, with the text of the library.
 */
#include "ext/ext.h"

SQLITE_EXTENSION_INIT3

#define TICK_MAX 1000000
#define TICK_DEFAULT 1000

static void report(sqlite3_context *context, const struct semel_error *err)
{
    sqlite3_result_error(context, err->text, -1);
    sqlite3_result_error_code(context, semel__ext_code(err)); /* keeps the text */
}

static void answer(sqlite3_context *context, semel_status status, const struct semel_error *err)
{
    if (status == SEMEL_OK || status == SEMEL_FENCED)
        sqlite3_result_int(context, status == SEMEL_OK);
    else
        report(context, err);
}

/* For what writes: the handle, in a transaction. */
static semel_status enter(sqlite3_context *context, const struct ext_args *args, struct semel **ret,
                          struct semel_error *err)
{
    struct ext *ext = sqlite3_user_data(context);
    semel_status status = semel__ext_writable(ext, args->who, err);

    return status == SEMEL_OK ? semel__ext_handle(ext, ret, err) : status;
}

/* ---- the ends of a message ----------------------------------------------------------------------- */

static void inbox_done(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"consumer", "message_id", "source", "outcome"};
    const struct ext_args args = {"semel_inbox_done", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_str outcome = {0};
    semel_status status = enter(context, &args, &s, &err);

    semel_msg_init(&msg);
    if (status == SEMEL_OK)
        status = semel__ext_text(&args, 0, &msg.consumer, &err);
    if (status == SEMEL_OK)
        status = semel__ext_text(&args, 1, &msg.id, &err);
    if (status == SEMEL_OK)
        status = semel__ext_text(&args, 2, &msg.source, &err);
    if (status == SEMEL_OK)
        status = semel__ext_json(&args, 3, &outcome, &err);
    for (int i = 0; status == SEMEL_OK && i < 2; i++)
        if (!semel__str_given(i == 0 ? msg.consumer : msg.id))
            status = semel__ext_missing(&args, i, &err);
    if (status == SEMEL_OK)
        status = semel_inbox_done(s, &msg, outcome, &err);
    answer(context, status, &err);
}

/* ---- the ends of a lease ------------------------------------------------------------------------- */

static void inbox_renew(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token", "lease"};
    const struct ext_args args = {"semel_inbox_renew", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    int64_t token = 0, lease_ms = 0;
    semel_status status = enter(context, &args, &s, &err);

    if (status == SEMEL_OK)
        status = semel__ext_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = semel__ext_lease_ms(&args, 1, &lease_ms, &err);
    if (status == SEMEL_OK)
        status = semel_inbox_renew(s, token, lease_ms, &err);
    answer(context, status, &err);
}

static void inbox_finish(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token", "class", "outcome", "reason"};
    const struct ext_args args = {"semel_inbox_finish", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_str outcome = {0}, reason = {0};
    enum semel_result result = SEMEL_DONE;
    int64_t token = 0;
    semel_status status = enter(context, &args, &s, &err);

    if (status == SEMEL_OK)
        status = semel__ext_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = semel__ext_class(&args, 1, SEMEL_DONE, &result, &err);
    if (status == SEMEL_OK)
        status = semel__ext_json(&args, 2, &outcome, &err);
    if (status == SEMEL_OK)
        status = semel__ext_text(&args, 3, &reason, &err);
    if (status != SEMEL_OK) {
        report(context, &err);
        return;
    }
    const int pending = semel_pending(s);
    status = semel_inbox_finish(s, token, result, outcome, reason, &err);
    if (status == SEMEL_FENCED && semel_pending(s) > pending)
        report(context, &err); /* its effect is in this transaction, which cannot commit any more */
    else
        answer(context, status, &err);
}

static void inbox_release(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"token"};
    const struct ext_args args = {"semel_inbox_release", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    int64_t token = 0;
    semel_status status = enter(context, &args, &s, &err);

    if (status == SEMEL_OK)
        status = semel__ext_token(&args, 0, &token, &err);
    if (status == SEMEL_OK)
        status = semel_inbox_release(s, token, &err);
    answer(context, status, &err);
}

static void tick(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"max"};
    const struct ext_args args = {"semel_tick", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    int64_t max = 0;
    size_t touched = 0;
    semel_status status = enter(context, &args, &s, &err);

    if (status == SEMEL_OK)
        status = semel__ext_int(&args, 0, 1, TICK_MAX, TICK_DEFAULT, &max, &err);
    if (status == SEMEL_OK)
        status = semel_tick(s, (size_t)max, &touched, &err);
    if (status == SEMEL_OK)
        sqlite3_result_int64(context, (sqlite3_int64)touched);
    else
        report(context, &err);
}

/* ---- the outbox, keys ---------------------------------------------------------------------------- */

static semel_status read_event(const struct ext_args *args, struct semel_event *event, struct semel_error *err)
{
    struct {
        int arg;
        bool required;
        struct semel_str *into;
    } const texts[] = {
        {0, true, &event->aggregatetype}, {1, true, &event->aggregateid},  {2, true, &event->type},
        {5, false, &event->headers},      {6, false, &event->destination}, {7, false, &event->id},
    };
    semel_status status = SEMEL_OK;

    semel_event_init(event);
    for (int i = 0; status == SEMEL_OK && i < EXT_COUNT(texts); i++) {
        status = semel__ext_text(args, texts[i].arg, texts[i].into, err);
        if (status == SEMEL_OK && texts[i].required && !semel__str_given(*texts[i].into))
            status = semel__ext_missing(args, texts[i].arg, err);
    }
    return status == SEMEL_OK ? semel__ext_payload(args, 3, &event->payload, err) : status;
}

static void outbox_put(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"aggregatetype", "aggregateid", "type",        "payload",
                                        "raw",           "headers",     "destination", "id"};
    const struct ext_args args = {"semel_outbox_put", names, values, n};
    struct semel_error err = {0};
    struct semel *s = NULL;
    struct semel_event event;
    char id[SEMEL_EVENT_ID_SIZE];
    semel_status status = enter(context, &args, &s, &err);

    if (status == SEMEL_OK)
        status = read_event(&args, &event, &err);
    if (status == SEMEL_OK)
        status = semel_outbox_put(s, &event, id, &err);
    if (status == SEMEL_OK)
        sqlite3_result_text(context, id, -1, SQLITE_TRANSIENT);
    else
        report(context, &err);
}

static void step_key(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"consumer", "message_id", "step", "source"};
    const struct ext_args args = {"semel_step_key", names, values, n};
    struct semel_error err = {0};
    struct semel_msg msg;
    const char *step = NULL;
    char key[SEMEL_STEP_KEY_SIZE];
    semel_status status;

    semel_msg_init(&msg);
    status = semel__ext_text(&args, 0, &msg.consumer, &err);
    if (status == SEMEL_OK)
        status = semel__ext_text(&args, 1, &msg.id, &err);
    if (status == SEMEL_OK)
        status = semel__ext_name(&args, 2, &step, &err);
    if (status == SEMEL_OK)
        status = semel__ext_text(&args, 3, &msg.source, &err);
    for (int i = 0; status == SEMEL_OK && i < 2; i++)
        if (!semel__str_given(i == 0 ? msg.consumer : msg.id))
            status = semel__ext_missing(&args, i, &err);
    if (status == SEMEL_OK)
        status = semel_step_key(&msg, step, key, &err);
    if (status == SEMEL_OK)
        sqlite3_result_text(context, key, -1, SQLITE_TRANSIENT);
    else
        report(context, &err);
}

/* ---- settings, tables, version ------------------------------------------------------------------- */

static void consumer(sqlite3_context *context, int n, sqlite3_value **values)
{
    static const char *const names[] = {"consumer", "settings"};
    const struct ext_args args = {"semel_consumer", names, values, n};
    struct semel_error err = {0};
    struct ext *ext = sqlite3_user_data(context);
    struct semel *s = NULL;
    const char *name = NULL, *settings = NULL;
    struct semel_str now = {0};
    semel_status status = semel__ext_name(&args, 0, &name, &err);

    if (status == SEMEL_OK && n == 2)
        status = semel__ext_name(&args, 1, &settings, &err);
    if (status == SEMEL_OK && n == 2)
        status = semel__ext_writable(ext, args.who, &err);
    if (status == SEMEL_OK)
        status = semel__ext_handle(ext, &s, &err);
    if (status == SEMEL_OK && n == 2)
        status = semel_consumer_set(s, name, settings, &err);
    if (status == SEMEL_OK)
        status = semel_consumer_get(s, name, &now, &err);
    if (status == SEMEL_OK)
        sqlite3_result_text64(context, now.p, now.n, SQLITE_TRANSIENT, SQLITE_UTF8);
    else
        report(context, &err);
}

static void migrate(sqlite3_context *context, int n, sqlite3_value **values)
{
    struct semel_error err = {0};
    int64_t version = 0;

    (void)n;
    (void)values;
    if (semel__ext_migrate(sqlite3_user_data(context), &version, &err) == SEMEL_OK)
        sqlite3_result_int64(context, version);
    else
        report(context, &err);
}

static void version_of_semel(sqlite3_context *context, int n, sqlite3_value **values)
{
    (void)n;
    (void)values;
    sqlite3_result_text(context, semel_version(), -1, SQLITE_STATIC);
}

const struct ext_function semel__ext_functions[] = {
    {"semel_inbox_done", 2, 4, 0, inbox_done},
    {"semel_inbox_renew", 1, 2, 0, inbox_renew},
    {"semel_inbox_finish", 1, 4, 0, inbox_finish},
    {"semel_inbox_release", 1, 1, 0, inbox_release},
    {"semel_tick", 0, 1, 0, tick},
    {"semel_outbox_put", 3, 8, 0, outbox_put},
    {"semel_step_key", 3, 4, SQLITE_DETERMINISTIC, step_key},
    {"semel_consumer", 1, 2, 0, consumer},
    {"semel_migrate", 0, 0, 0, migrate},
    {"semel_version", 0, 0, SQLITE_DETERMINISTIC, version_of_semel},
};
const int semel__ext_n_functions = EXT_COUNT(semel__ext_functions);
