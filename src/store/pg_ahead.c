/* SPDX-License-Identifier: MIT
 *
 * pg_ahead.c: a transaction that is begun before it is asked for.
 *
 * Whoever knows that a batch will follow says so; then BEGIN and the question for the consumer's settings are on their
 * way while the batch is being prepared, and two round trips cost nobody any time. `consumer_get` and `begin` take the
 * answers. Any other use of the connection takes it back first: nothing was done in the transaction.
 *
 * Only on connections of our own, and not behind a pooler.
 *
 * Invariants: the trip is run and ended before another one is started; a transaction that nobody asked for is rolled
 * back; a failure is told to whoever asks first, and the transaction is gone then.
 */
#include "store/pg.h"

struct pg_ahead {
    struct pg_trip trip;
    size_t begun, settings;
    char consumer[SEMEL_ID_MAX];
    size_t consumer_n;
    bool sent, answered;
};

bool semel__pg_ahead_is(const struct pg_store *d)
{
    return d->ahead != NULL && d->ahead->sent;
}

static struct semel_str consumer_of(const struct pg_ahead *a)
{
    return (struct semel_str){a->consumer, a->consumer_n};
}

static bool may(const struct pg_store *d, struct semel_str consumer)
{
    return !d->wrapped && !d->pooler && !d->broken && !d->begun && !d->joined && d->conn != NULL && consumer.n > 0 &&
           consumer.n <= SEMEL_ID_MAX && !semel__pg_queue_open(d) && PQtransactionStatus(d->conn) == PQTRANS_IDLE;
}

void semel__pg_ahead(struct semel_store *store, struct semel_str consumer)
{
    struct pg_store *d = semel__pg_of(store);
    semel__pg_ahead_drop(d);
    if (!may(d, consumer) || (d->ahead == NULL && (d->ahead = semel__calloc(1, sizeof(*d->ahead))) == NULL))
        return;
    struct pg_ahead *a = d->ahead;
    memcpy(a->consumer, consumer.p, consumer.n);
    a->consumer_n = consumer.n;
    a->answered = false;
    semel__pg_start(&a->trip, d, "begin");
    a->begun = semel__pg_begin_add(&a->trip);
    semel__pg_text(&a->trip, consumer_of(a));
    a->settings = semel__pg_add(&a->trip, &semel__pg_statements[SQL_consumer_get].sql);
    a->sent = true;
    (void)PQflush(d->conn); /* what does not go now goes when the answer is waited for */
}

/* Waits for the answers, once. A failure ends it. */
static semel_status answer(struct pg_store *d, struct semel_error *err)
{
    struct pg_ahead *a = d->ahead;
    if (a->answered)
        return SEMEL_OK;
    semel_status status = semel__pg_run(&a->trip, err);
    a->answered = status == SEMEL_OK;
    if (status != SEMEL_OK)
        semel__pg_ahead_drop(d);
    return status;
}

semel_status semel__pg_ahead_begun(struct pg_store *d, const PGresult **ret, struct semel_error *err)
{
    semel_status status = answer(d, err);
    if (status == SEMEL_OK)
        *ret = d->ahead->trip.results[d->ahead->begun];
    return status;
}

bool semel__pg_ahead_asked(const struct pg_store *d, struct semel_str consumer)
{
    return semel__pg_ahead_is(d) && semel__str_eq(consumer, consumer_of(d->ahead));
}

semel_status semel__pg_ahead_settings(struct pg_store *d, PGresult **ret, struct semel_error *err)
{
    semel_status status = answer(d, err);
    if (status == SEMEL_OK)
        *ret = d->ahead->trip.results[d->ahead->settings];
    return status;
}

void semel__pg_ahead_end(struct pg_store *d)
{
    if (!semel__pg_ahead_is(d))
        return;
    d->ahead->sent = false;
    semel__pg_end(&d->ahead->trip);
}

void semel__pg_ahead_drop(struct pg_store *d)
{
    bool begun = d->begun;
    if (!semel__pg_ahead_is(d))
        return;
    semel__pg_ahead_end(d);
    d->begun = true; /* it is ours to be rolled back */
    semel__pg_rollback(&d->sql.store);
    d->begun = begun;
}

void semel__pg_ahead_free(struct pg_store *d)
{
    semel__pg_ahead_end(d);
    semel__free(d->ahead);
    d->ahead = NULL;
}
