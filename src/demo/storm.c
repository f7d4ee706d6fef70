/* SPDX-License-Identifier: MIT
 *
 * storm.c: the producer of the demo. Makes payments, records them, and sends them with copies and out of order.
 *
 * A third of the payments is sent twice under the same id: half of these copies right behind the original, so that two
 * workers may have both at once, half of them long after it. Everything passes a window in which it is shuffled. A few
 * payments are poison: no consumer can book them.
 *
 * Invariants: a payment is recorded in the demo's own database before the broker has it. Every choice comes from one
 * generator that is asked in a fixed order, so the stream depends on the seed and not on the speed of the machine.
 * The two windows limit how much is held back.
 */
#include "demo/demo.h"

#include <stdio.h>

#include <sqlite3.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "demo/spool.h"

#define ID_TEXT 32
#define ACCOUNT_TEXT 32
#define COPIES_PER_MILLE 333
#define PAYLOAD_TEXT 160
#define PAYLOAD_MAX 4096
#define FAULT_EVERY 25
#define POISON_EVERY 1000
#define PUSH_TRIES 5

static const char sent_schema[] =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
    "CREATE TABLE payment (id TEXT PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL, poison TEXT) STRICT;";

#define X(name, text) text,
static const char *const poison_texts[] = {DEMO_POISON_MAP(X)};
#undef X

/* ---- a payment -------------------------------------------------------------------------------------------- */

static void payment_id(const struct demo_payment *payment, char out[ID_TEXT])
{
    snprintf(out, ID_TEXT, "pay-%08lld", (long long)payment->n);
}

static void payment_account(const struct demo_payment *payment, char out[ACCOUNT_TEXT])
{
    snprintf(out, ACCOUNT_TEXT, payment->poison == DEMO_POISON_ACCOUNT ? "nobody-%03d" : "acc-%03d", payment->account);
}

static void write_payload(const struct demo_payment *payment, char out[PAYLOAD_TEXT])
{
    char id[ID_TEXT], account[ACCOUNT_TEXT];

    payment_id(payment, id);
    payment_account(payment, account);
    snprintf(out, PAYLOAD_TEXT,
             payment->poison == DEMO_POISON_TEXT ? "payment=%s&account=%s&cents=%lld"
                                                 : "{\"payment\":\"%s\",\"account\":\"%s\",\"cents\":%lld}",
             id, account, (long long)payment->cents);
}

static semel_status member(const struct semel_json *json, const char *pointer, struct semel_arena *arena,
                           enum semel_json_kind kind, struct semel_str *ret, struct semel_error *err)
{
    enum semel_json_kind found;
    semel_status status = semel__json_get(json, semel__str(pointer), arena, &found, ret, err);

    if (status == SEMEL_OK && found != kind)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "the payment has no proper %s", pointer);
    return status;
}

semel_status demo_order_read(struct semel_str payload, struct semel_arena *arena, struct demo_order *ret,
                             struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_str cents;
    semel_status status = semel__json_parse(&json, payload, PAYLOAD_MAX, err);

    if (status == SEMEL_INVALID && err != NULL)
        err->cls = SEMEL_CLASS_PERMANENT;
    if (status != SEMEL_OK)
        return status;
    status = member(json, "/account", arena, SEMEL_JSON_STRING, &ret->account, err);
    if (status == SEMEL_OK)
        status = member(json, "/cents", arena, SEMEL_JSON_INTEGER, &cents, err);
    if (status == SEMEL_OK && !semel__str_int64(cents, &ret->cents))
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "/cents is beyond 64 bits");
    semel__json_free(json);
    return status;
}

/* Every 25th payment; the fault lasts for one, two, one and four attempts in turn. */
int demo_faults(int64_t seed, struct semel_str id)
{
    static const int lengths[] = {1, 2, 1, 4};
    int64_t n;
    const struct semel_str digits = id.n > 4 ? (struct semel_str){id.p + 4, id.n - 4} : (struct semel_str){"", 0};

    if (!semel__str_int64(digits, &n) || n < 0 || n > INT64_MAX / 2)
        return 0;
    n += seed % (4 * FAULT_EVERY);
    return n % FAULT_EVERY == 0 ? lengths[n / FAULT_EVERY % 4] : 0;
}

/* Three early ones, so that a short run has each kind, then one in a thousand. */
static enum demo_poison choose_poison(int64_t n)
{
    switch (n) {
    case 60:
        return DEMO_POISON_ACCOUNT;
    case 90:
        return DEMO_POISON_AMOUNT;
    case 120:
        return DEMO_POISON_TEXT;
    default:
        return n % POISON_EVERY == 0 ? (enum demo_poison)(1 + n / POISON_EVERY % 3) : DEMO_POISON_NONE;
    }
}

static struct demo_payment make_payment(struct demo_storm *storm)
{
    struct demo_payment payment = {.n = ++storm->n, .made_us = semel__now(&semel__clock_real)};

    payment.account = (int)semel__random_below(&storm->rng, DEMO_ACCOUNTS);
    payment.cents = 100 + (int64_t)semel__random_below(&storm->rng, 50000);
    payment.poison = choose_poison(payment.n);
    if (payment.poison == DEMO_POISON_AMOUNT)
        payment.cents = 0;
    return payment;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

bool demo_storm_open(struct demo_storm *storm, const struct demo_settings *set, struct semel_error *err)
{
    *storm = (struct demo_storm){0};
    semel__random_seed(&storm->rng, (uint64_t)set->seed);
    if (demo_broker_open(&storm->broker, set->files->broker, err) != SEMEL_OK ||
        !demo_db_open(set->files->sent, DEMO_CREATE, &storm->sent, err) || !demo_db_exec(storm->sent, sent_schema, err))
        return false;
    if (sqlite3_prepare_v2(storm->sent, "INSERT INTO payment (id, account, cents, poison) VALUES (?1, ?2, ?3, ?4)", -1,
                           &storm->note, NULL) != SQLITE_OK)
        return demo_db_failed(storm->sent, "preparing to write down payments", err);
    return true;
}

void demo_storm_close(struct demo_storm *storm)
{
    sqlite3_finalize(storm->note);
    demo_db_close(storm->sent);
    if (storm->broker != NULL)
        semel_broker_close(storm->broker);
    *storm = (struct demo_storm){0};
}

/* ---- sending ---------------------------------------------------------------------------------------------- */

static bool write_down(struct demo_storm *storm, const struct demo_payment *payment, struct semel_error *err)
{
    char id[ID_TEXT], account[ACCOUNT_TEXT];
    int rc;

    payment_id(payment, id);
    payment_account(payment, account);
    sqlite3_bind_text(storm->note, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_text(storm->note, 2, account, -1, SQLITE_STATIC);
    sqlite3_bind_int64(storm->note, 3, payment->cents);
    if (payment->poison != DEMO_POISON_NONE)
        sqlite3_bind_text(storm->note, 4, poison_texts[payment->poison], -1, SQLITE_STATIC);
    rc = sqlite3_step(storm->note);
    sqlite3_reset(storm->note);
    sqlite3_clear_bindings(storm->note);
    return rc == SQLITE_DONE || demo_db_failed(storm->sent, "writing down a payment", err);
}

/* Puts a payment into a window that is full when it has `max`; true: *io is the payment that it replaced. */
static bool shuffle(struct demo_storm *storm, struct demo_payment *window, size_t *n, size_t max,
                    struct demo_payment *io)
{
    struct demo_payment out;
    size_t i;

    if (*n < max) {
        window[(*n)++] = *io;
        return false;
    }
    i = (size_t)semel__random_below(&storm->rng, max);
    out = window[i];
    window[i] = *io;
    *io = out;
    return true;
}

static void pass_near(struct demo_storm *storm, struct demo_payment payment)
{
    if (shuffle(storm, storm->near, &storm->n_near, DEMO_NEAR, &payment))
        storm->out[storm->n_out++] = payment;
}

/* At most two messages leave for one new payment. */
static void pass(struct demo_storm *storm, const struct demo_payment *payment)
{
    struct demo_payment copy = *payment;

    pass_near(storm, *payment);
    if (!semel__random_chance(&storm->rng, COPIES_PER_MILLE))
        return;
    if (semel__random_chance(&storm->rng, 500) || shuffle(storm, storm->far, &storm->n_far, DEMO_FAR, &copy))
        pass_near(storm, copy);
}

/* One message with its strings. */
struct letter {
    char id[ID_TEXT], time[SEMEL_TIME_TEXT], payload[PAYLOAD_TEXT];
    struct semel_pair headers[3];
};

static void write_letter(const struct demo_payment *payment, struct letter *letter, struct semel_spool_push *push)
{
    payment_id(payment, letter->id);
    semel__time_format(payment->made_us, letter->time);
    write_payload(payment, letter->payload);
    letter->headers[0] = (struct semel_pair){SEMEL_STR("ce_id"), semel__str(letter->id)};
    letter->headers[1] = (struct semel_pair){SEMEL_STR("ce_type"), SEMEL_STR("payment.made")};
    letter->headers[2] = (struct semel_pair){SEMEL_STR("ce_time"), semel__str(letter->time)};
    *push = (struct semel_spool_push){.source = SEMEL_STR(DEMO_SOURCE),
                                      .partition = -1,
                                      .payload = semel__str(letter->payload),
                                      .headers = letter->headers,
                                      .n_headers = 3};
}

/* The workers may lock the broker's file for longer than one call waits. */
static semel_status push(struct demo_storm *storm, const struct semel_spool_push *pushes, size_t n,
                         struct semel_error *err)
{
    semel_status status = SEMEL_RETRY;

    for (int i = 0; i < PUSH_TRIES && status == SEMEL_RETRY; i++)
        status = semel__spool_push(storm->broker, pushes, n, NULL, err);
    return status;
}

static bool push_out(struct demo_storm *storm, struct semel_error *err)
{
    struct letter letters[2 * DEMO_SEND_MAX];
    struct semel_spool_push pushes[2 * DEMO_SEND_MAX];

    for (size_t i = 0; i < storm->n_out; i++)
        write_letter(&storm->out[i], &letters[i], &pushes[i]);
    if (storm->n_out > 0 && push(storm, pushes, storm->n_out, err) != SEMEL_OK)
        return false;
    storm->pushed += (int64_t)storm->n_out;
    storm->n_out = 0;
    return true;
}

bool demo_storm_send(struct demo_storm *storm, size_t n, struct semel_error *err)
{
    if (n > DEMO_SEND_MAX)
        n = DEMO_SEND_MAX;
    if (n == 0)
        return true;
    if (!demo_db_exec(storm->sent, "BEGIN", err))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct demo_payment payment = make_payment(storm);
        if (!write_down(storm, &payment, err))
            return false;
        pass(storm, &payment);
    }
    return demo_db_exec(storm->sent, "COMMIT", err) && push_out(storm, err);
}

bool demo_storm_flush(struct demo_storm *storm, struct semel_error *err)
{
    while (storm->n_far > 0 || storm->n_near > 0) {
        while (storm->n_out < DEMO_SEND_MAX && storm->n_far > 0)
            pass_near(storm, storm->far[--storm->n_far]);
        while (storm->n_out < DEMO_SEND_MAX && storm->n_far == 0 && storm->n_near > 0)
            storm->out[storm->n_out++] = storm->near[--storm->n_near];
        if (!push_out(storm, err))
            return false;
    }
    return true;
}
