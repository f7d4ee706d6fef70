/* SPDX-License-Identifier: MIT
 *
 * ext_inbox.c: the table-valued functions: semel_inbox_begin, _fail, _claim, _put and _take.
 *
 * Invariants: the declared columns, the names of the arguments and the enumerations below have one order, which is that
 * of the SQL surface. A payload comes back as text where it is JSON, else as a BLOB.
 */
#include "ext/ext.h"

#include <limits.h>

SQLITE_EXTENSION_INIT3

#define TAKE_MAX 1000

/* ---- messages ------------------------------------------------------------------------------------ */

enum {
    ARG_CONSUMER,
    ARG_MESSAGE_ID,
    ARG_SOURCE,
    ARG_TYPE,
    ARG_PAYLOAD,
    ARG_RAW,
    ARG_HEADERS,
    ARG_BUSINESS_KEY,
    ARG_ORDER_KEY,
    ARG_VERSION,
    ARG_FINGERPRINT,
    ARG_MESSAGE_TIME,
    ARG_DELIVERY,
    ARG_MORE, /* fail: class, reason; claim: lease */
};

#define MSG_NAMES                                                                                                    \
    "consumer", "message_id", "source", "type", "payload", "raw", "headers", "business_key", "order_key", "version", \
        "fingerprint", "message_time", "delivery"
#define MSG_COLUMNS                                                                                \
    "consumer HIDDEN, message_id HIDDEN, source HIDDEN, type HIDDEN, payload HIDDEN, raw HIDDEN, " \
    "headers HIDDEN, business_key HIDDEN, order_key HIDDEN, version HIDDEN, fingerprint HIDDEN, "  \
    "message_time HIDDEN, delivery HIDDEN"

static semel_status read_texts(const struct ext_args *args, struct semel_msg *msg, struct semel_error *err)
{
    struct {
        int arg;
        struct semel_str *into;
    } const texts[] = {
        {ARG_CONSUMER, &msg->consumer},   {ARG_MESSAGE_ID, &msg->id},   {ARG_SOURCE, &msg->source},
        {ARG_TYPE, &msg->type},           {ARG_HEADERS, &msg->headers}, {ARG_BUSINESS_KEY, &msg->business_key},
        {ARG_ORDER_KEY, &msg->order_key},
    };
    semel_status status = SEMEL_OK;

    for (int i = 0; status == SEMEL_OK && i < EXT_COUNT(texts); i++)
        status = semel__ext_text(args, texts[i].arg, texts[i].into, err);
    if (status == SEMEL_OK && !semel__str_given(msg->consumer))
        status = semel__ext_missing(args, ARG_CONSUMER, err);
    return status;
}

static semel_status read_msg(const struct ext_args *args, struct semel_msg *msg, struct semel_error *err)
{
    int64_t delivery = 0;
    semel_status status;

    semel_msg_init(msg);
    status = read_texts(args, msg, err);
    if (status == SEMEL_OK)
        status = semel__ext_payload(args, ARG_PAYLOAD, &msg->payload, err);
    if (status == SEMEL_OK)
        status = semel__ext_bytes(args, ARG_FINGERPRINT, &msg->fingerprint, err);
    if (status == SEMEL_OK)
        status = semel__ext_int(args, ARG_VERSION, 0, INT64_MAX, SEMEL_NONE, &msg->version, err);
    if (status == SEMEL_OK)
        status = semel__ext_time(args, ARG_MESSAGE_TIME, &msg->message_time_us, err);
    if (status == SEMEL_OK)
        status = semel__ext_int(args, ARG_DELIVERY, 0, INT_MAX, 0, &delivery, err);
    msg->delivery = (int)delivery;
    return status;
}

/* ---- one message, one row ------------------------------------------------------------------------ */

enum { OUT_ACT, OUT_WHY, OUT_ATTEMPT, OUT_OUTCOME, OUT_TOKEN };

static struct ext_cell *answer(struct ext_call *call, const struct semel_verdict *verdict)
{
    struct ext_cell *row = semel__ext_room(call, 1) ? semel__ext_row(call) : NULL;

    if (row == NULL) {
        call->no_memory = true;
        return NULL;
    }
    semel__ext_put(call, &row[OUT_ACT], semel_str(semel_act_name(verdict->act)), false);
    return row;
}

static void answer_why(struct ext_call *call, const struct semel_verdict *verdict)
{
    struct ext_cell *row = answer(call, verdict);

    if (row == NULL)
        return;
    semel__ext_put(call, &row[OUT_WHY], semel_str(semel_why_name(verdict->why)), false);
    if (call->table->n_out <= OUT_OUTCOME)
        return;
    semel__ext_put_int(&row[OUT_ATTEMPT], verdict->attempt);
    semel__ext_put(call, &row[OUT_OUTCOME], verdict->outcome, false);
    if (call->table->n_out > OUT_TOKEN && verdict->act == SEMEL_RUN)
        semel__ext_put_int(&row[OUT_TOKEN], verdict->token);
}

static semel_status open_call(struct ext_call *call, struct semel **ret_s, struct semel_msg *ret_msg,
                              struct semel_verdict *ret_verdict, struct semel_error *err)
{
    semel_status status = read_msg(&call->args, ret_msg, err);

    semel_verdict_init(ret_verdict);
    return status == SEMEL_OK ? semel__ext_handle(call->ext, ret_s, err) : status;
}

static semel_status run_begin(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    semel_status status = open_call(call, &s, &msg, &verdict, err);

    if (status == SEMEL_OK)
        status = semel_inbox_begin(s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        answer_why(call, &verdict);
    return status;
}

static semel_status run_put(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    semel_status status = open_call(call, &s, &msg, &verdict, err);

    if (status == SEMEL_OK)
        status = semel_inbox_put(s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        answer_why(call, &verdict);
    return status;
}

static semel_status run_claim(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    int64_t lease_ms = 0;
    semel_status status = semel__ext_lease_ms(&call->args, ARG_MORE, &lease_ms, err);

    if (status == SEMEL_OK)
        status = open_call(call, &s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        status = semel_inbox_claim(s, &msg, lease_ms, &verdict, err);
    if (status == SEMEL_OK)
        answer_why(call, &verdict);
    return status;
}

enum { FAIL_ACT, FAIL_DUE_AT, FAIL_WHY, FAIL_STATE, FAIL_HINT };

static semel_status run_fail(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_verdict verdict;
    struct semel_str reason = {0};
    struct ext_cell *row;
    enum semel_result result = SEMEL_DONE;
    semel_status status = semel__ext_class(&call->args, ARG_MORE, SEMEL_DONE, &result, err);

    if (status == SEMEL_OK && result == SEMEL_DONE)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "semel_inbox_fail: class must be transient, permanent, rejected or unknown");
    if (status == SEMEL_OK)
        status = semel__ext_text(&call->args, ARG_MORE + 1, &reason, err);
    if (status == SEMEL_OK)
        status = open_call(call, &s, &msg, &verdict, err);
    if (status == SEMEL_OK)
        status = semel_inbox_fail(s, &msg, result, reason, &verdict, err);
    row = status == SEMEL_OK ? answer(call, &verdict) : NULL;
    if (row == NULL)
        return status;
    semel__ext_put_int(&row[FAIL_DUE_AT], verdict.due_us);
    semel__ext_put(call, &row[FAIL_WHY], semel_str(semel_why_name(verdict.why)), false);
    semel__ext_put(call, &row[FAIL_STATE], semel_str(semel_state_name(verdict.state)), false);
    semel__ext_put(call, &row[FAIL_HINT], verdict.hint, false);
    return status;
}

/* ---- stored work --------------------------------------------------------------------------------- */

enum { TAKE_CONSUMER, TAKE_COUNT, TAKE_LEASE };

/* What cannot be copied is noted in the call; run_take then undoes the claims. */
static void taken(void *ctx, const struct semel_msg *msg, const struct semel_verdict *verdict)
{
    struct ext_call *call = ctx;
    struct ext_cell *row = semel__ext_row(call);
    bool json = false;

    if (row == NULL || semel__ext_is_json(msg->payload, &json) != SEMEL_OK) {
        call->no_memory = true;
        return;
    }
    semel__ext_put_int(row++, verdict->token);
    semel__ext_put(call, row++, msg->id, false);
    semel__ext_put(call, row++, msg->source, false);
    semel__ext_put(call, row++, msg->type, false);
    semel__ext_put(call, row++, msg->payload, !json);
    semel__ext_put(call, row++, msg->headers, false);
    semel__ext_put(call, row++, msg->order_key, false);
    semel__ext_put_int(row++, msg->version);
    semel__ext_put_int(row++, verdict->attempt);
    semel__ext_put_int(row++, verdict->lease_until_us);
    semel__ext_put(call, row, msg->traceparent, false);
}

/* A claim that nobody was told of would keep its message until the lease runs out. */
static semel_status take(struct ext_call *call, struct semel *s, const char *consumer, size_t max, int64_t lease_ms,
                         struct semel_error *err)
{
    sqlite3 *db = semel__ext_db(call->ext);
    size_t n = 0;
    semel_status status;

    if (sqlite3_exec(db, "SAVEPOINT semel_take", NULL, NULL, NULL) != SQLITE_OK)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "semel_inbox_take: no savepoint could be set");
    status = semel_inbox_take(s, consumer, max, lease_ms, taken, call, &n, err);
    if (status == SEMEL_OK && call->no_memory)
        status = semel__fail_memory(err);
    if (status != SEMEL_OK)
        sqlite3_exec(db, "ROLLBACK TO semel_take", NULL, NULL, NULL);
    sqlite3_exec(db, "RELEASE semel_take", NULL, NULL, NULL);
    return status;
}

static semel_status run_take(struct ext_call *call, struct semel_error *err)
{
    struct semel *s = NULL;
    const char *consumer = NULL;
    int64_t max = 0, lease_ms = 0;
    semel_status status = semel__ext_name(&call->args, TAKE_CONSUMER, &consumer, err);

    if (status == SEMEL_OK)
        status = semel__ext_int(&call->args, TAKE_COUNT, 1, TAKE_MAX, 1, &max, err);
    if (status == SEMEL_OK)
        status = semel__ext_lease_ms(&call->args, TAKE_LEASE, &lease_ms, err);
    if (status == SEMEL_OK)
        status = semel__ext_handle(call->ext, &s, err);
    if (status == SEMEL_OK && !semel__ext_room(call, (size_t)max))
        status = semel__fail_memory(err);
    return status == SEMEL_OK ? take(call, s, consumer, (size_t)max, lease_ms, err) : status;
}

/* ---- what there is ------------------------------------------------------------------------------- */

static const char *const msg_args[] = {MSG_NAMES};
static const char *const fail_args[] = {MSG_NAMES, "class", "reason"};
static const char *const claim_args[] = {MSG_NAMES, "lease"};
static const char *const take_args[] = {"consumer", "max", "lease"};

_Static_assert(EXT_COUNT(msg_args) == ARG_MORE && EXT_COUNT(fail_args) <= EXT_ARGS_MAX, "as enumerated");

#define REQUIRED(arg) (1U << (arg))
#define REQUIRED_MSG (REQUIRED(ARG_CONSUMER) | REQUIRED(ARG_MESSAGE_ID))

const struct ext_table semel__ext_tables[] = {
    {
        .name = "semel_inbox_begin",
        .columns = "CREATE TABLE semel_inbox_begin (act, why, attempt, outcome, " MSG_COLUMNS ")",
        .args = msg_args,
        .n_out = 4,
        .n_args = EXT_COUNT(msg_args),
        .required = REQUIRED_MSG,
        .run = run_begin,
    },
    {
        .name = "semel_inbox_fail",
        .columns = "CREATE TABLE semel_inbox_fail (act, due_at, why, state, hint, " MSG_COLUMNS
                   ", class HIDDEN, reason HIDDEN)",
        .args = fail_args,
        .n_out = 5,
        .n_args = EXT_COUNT(fail_args),
        .required = REQUIRED_MSG | REQUIRED(ARG_MORE),
        .run = run_fail,
    },
    {
        .name = "semel_inbox_claim",
        .columns = "CREATE TABLE semel_inbox_claim (act, why, attempt, outcome, token, " MSG_COLUMNS ", lease HIDDEN)",
        .args = claim_args,
        .n_out = 5,
        .n_args = EXT_COUNT(claim_args),
        .required = REQUIRED_MSG,
        .run = run_claim,
    },
    {
        .name = "semel_inbox_put",
        .columns = "CREATE TABLE semel_inbox_put (act, why, " MSG_COLUMNS ")",
        .args = msg_args,
        .n_out = 2,
        .n_args = EXT_COUNT(msg_args),
        .required = REQUIRED_MSG,
        .run = run_put,
    },
    {
        .name = "semel_inbox_take",
        .columns = "CREATE TABLE semel_inbox_take (token, message_id, source, type, payload, headers, order_key, "
                   "version, attempt, lease_until, traceparent, consumer HIDDEN, max HIDDEN, lease HIDDEN)",
        .args = take_args,
        .n_out = 11,
        .n_args = EXT_COUNT(take_args),
        .required = REQUIRED(TAKE_CONSUMER),
        .many = true,
        .run = run_take,
    },
};
const int semel__ext_n_tables = EXT_COUNT(semel__ext_tables);
_Static_assert(EXT_COUNT(semel__ext_tables) <= EXT_TABLES_MAX, "room for each");
