/* SPDX-License-Identifier: MIT
 *
 * fuzz_pg_rows.c: what a PostgreSQL server may answer, whatever it is and whoever wrote the rows.
 *
 * The input: one byte chooses the status of an otherwise sound row, and whether all of its columns are asked for or
 * those of a final row; then, until the end, a column's number and a value each (see value()). The row is an answer of
 * libpq in binary, made by hand; there is no server.
 *
 * What must hold: no crash and no failed assertion; a row is sound or called damaged, with a sentence that says where;
 * what is sound passes the check of core and keeps every bound; what is damaged leaves the caller's row alone; lack of
 * memory is told as such. A row in which nothing was planted is sound.
 */
#include <endian.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/state.h"
#include "store/pg.h"

#define NOW_2000 INT64_C(753315200000000) /* in November 2023, in microseconds since 2000 */
#define CELL_MAX 300
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_pg_rows.c:%d: does not hold: %s\n", line, condition);
    abort();
}

/* ---- the row ------------------------------------------------------------------------------------------- */

/* The columns of inbox_read, and those of inbox_final: an item's number comes first. */
#define READ (&semel__pg_statements[SQL_inbox_read])
#define FINAL (&semel__pg_statements[SQL_inbox_final])

struct value {
    char p[CELL_MAX];
    int n; /* -1: null */
};

static struct value row[SQL_NAME_COUNT];

static void put(enum sql_name col, const void *p, size_t n)
{
    row[col].n = (int)(n < CELL_MAX ? n : CELL_MAX);
    memcpy(row[col].p, p, (size_t)row[col].n);
}

static void put_text(enum sql_name col, const char *text)
{
    put(col, text, strlen(text));
}

static void put_int8(enum sql_name col, int64_t v)
{
    uint64_t wire = htobe64((uint64_t)v);
    put(col, &wire, sizeof wire);
}

static void put_int4(enum sql_name col, int32_t v)
{
    uint32_t wire = htobe32((uint32_t)v);
    put(col, &wire, sizeof wire);
}

static void put_flag(enum sql_name col, bool v)
{
    char wire = v ? 1 : 0;
    put(col, &wire, 1);
}

static const char *const words[] = {"processing", "completed", "failed",    "waiting",     "rejected", "unknown",
                                    "dead",       "stale",     "prevented", "quarantined", "absent",   "",
                                    "k",          "gap",       "blocked",   "transient"};

static void sound_row(unsigned status)
{
    enum semel_row_status state = SEMEL_ROW_ABSENT;
    for (int i = 0; i < SQL_NAME_COUNT; i++)
        row[i].n = -1;
    MUST(semel__row_status_parse(semel__str(words[status]), &state));
    put_int8(SQL_NAME_arrival, 10);
    put_text(SQL_NAME_consumer, "c");
    put_text(SQL_NAME_source, "s");
    put_text(SQL_NAME_message_id, "m");
    put_text(SQL_NAME_status, words[status]);
    put_int4(SQL_NAME_attempts, 1);
    put_int4(SQL_NAME_attempts_before, 0);
    put_int4(SQL_NAME_retries, 0);
    put_flag(SQL_NAME_alone, false);
    put_int8(SQL_NAME_received_at, NOW_2000);
    put_int8(SQL_NAME_updated_at, NOW_2000);
    put_flag(SQL_NAME_kept, true);
    put_text(SQL_NAME_payload, "x");
    if (semel__state_final(state))
        put_int8(SQL_NAME_processed_at, NOW_2000);
    if (state == SEMEL_ROW_PROCESSING) {
        put_text(SQL_NAME_lease_owner, "w");
        put_int8(SQL_NAME_lease_until, NOW_2000);
        put_int8(SQL_NAME_lease_token, 7);
    }
}

struct bytes {
    const unsigned char *p;
    size_t n;
};

static unsigned next(struct bytes *in)
{
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->p++;
}

/* A value as the next bytes say: of the right size for a number, a time or a flag, or any bytes at all. */
static void value(struct bytes *in, enum sql_name col)
{
    unsigned kind = next(in) & 7;
    size_t n = kind == 1 ? 8 : kind == 2 ? 4 : kind == 3 ? next(in) : 0;
    if (n == 255) /* longer than an id may be */
        n = CELL_MAX;
    if (n > in->n)
        n = in->n;
    if (kind == 0)
        row[col].n = -1;
    else if (kind <= 3)
        put(col, in->p, n);
    else if (kind == 4)
        put_text(col, words[next(in) & 15]);
    else if (kind == 5)
        put_int8(col, NOW_2000 + ((int64_t)next(in) - 128) * 1000000);
    else if (kind == 6)
        put_int4(col, (int32_t)next(in) - 8);
    else
        put_flag(col, (next(in) & 1) != 0);
    in->p += n;
    in->n -= n;
}

/* ---- the answer ---------------------------------------------------------------------------------------- */

static PGresult *answer(const struct sql_statement *statement)
{
    PGresAttDesc attributes[SQL_NAME_COUNT] = {{0}};
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    MUST(res != NULL);
    for (size_t i = 0; i < statement->n_gives; i++) {
        attributes[i].name = (char *)"x";
        attributes[i].format = 1;
    }
    MUST(PQsetResultAttrs(res, (int)statement->n_gives, attributes) != 0);
    for (size_t i = 0; i < statement->n_gives; i++) {
        struct value *v = &row[statement->gives[i]];
        MUST(PQsetvalue(res, 0, (int)i, v->n >= 0 ? v->p : NULL, v->n) != 0);
    }
    return res;
}

static void check_sound(const struct semel_row *read)
{
    const struct semel_str texts[] = {
        read->consumer,           read->source,      read->id,       read->type,
        read->order_key,          read->traceparent, read->position, read->progress.lease_owner,
        read->progress.error_text};
    struct semel_error err;
    MUST(semel__row_check(read, &err) == SEMEL_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        MUST(texts[i].n <= CELL_MAX && semel__utf8_valid(texts[i]));
    MUST(read->id.n <= SEMEL_ID_MAX && read->source.n <= SEMEL_ID_MAX && read->consumer.n <= SEMEL_ID_MAX);
    MUST(read->progress.attempts >= 0 && read->progress.retries >= 0 &&
         read->progress.attempts_before <= read->progress.attempts);
    MUST(read->received_us != SEMEL_NONE && read->updated_us != SEMEL_NONE && read->arrival != SEMEL_NONE);
}

static semel_status read_row(PGresult *res, const struct sql_statement *statement, size_t memory)
{
    const struct semel_row key = {.consumer = SEMEL_STR("c"), .source = SEMEL_STR("s"), .id = SEMEL_STR("m")};
    static const struct sql db = {.driver = &semel__pg_driver};
    const struct sql_row from = {.db = &db, .statement = statement, .result = res};
    struct semel_row read = {.arrival = -77};
    struct semel_error err = {0};
    struct semel_arena arena;
    semel__arena_init(&arena, memory);
    semel_status status = statement == FINAL ? semel__record_final(&from, &key, &arena, &read, &err)
                                             : semel__record_row(&from, &arena, &read, &err);
    if (status == SEMEL_OK) {
        check_sound(&read);
    } else {
        MUST(read.arrival == -77);
        MUST(status == SEMEL_INVALID ? strstr(err.text, "damaged row in semel.inbox") != NULL : status == SEMEL_RETRY);
    }
    semel__arena_done(&arena);
    return status;
}

/* Every cell as everything that it is not. */
static void read_cells(PGresult *res, const struct sql_statement *statement)
{
    static const struct sql db = {.driver = &semel__pg_driver};
    for (int col = 0; col <= (int)statement->n_gives; col++) /* one more of each than there are */
        for (int at = 0; at < 2; at++)
            for (int kind = SQL_TEXT; kind <= SQL_FINGERPRINT; kind++) {
                const struct sql_row from = {.db = &db, .statement = statement, .result = res, .row = at};
                struct sql_value value = {0};
                MUST(db.driver->cell(&from, col, (enum sql_kind)kind, &value) == SQL_CELL_OK);
                MUST(value.null || (int)value.text.n <= PQgetlength(res, at, col));
            }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct bytes in = {data, size};
    unsigned first = next(&in);
    const struct sql_statement *statement = (first & 128) != 0 ? FINAL : READ;
    bool planted = in.n > 0;
    sound_row((first & 127) % 10);
    while (in.n > 0)
        value(&in, (enum sql_name)READ->gives[1 + next(&in) % (READ->n_gives - 1)]);
    PGresult *res = answer(statement);
    semel_status status = read_row(res, statement, 1 << 22);
    MUST(status == SEMEL_OK || status == SEMEL_INVALID);
    if (!planted)
        MUST(status == SEMEL_OK || (statement == FINAL && row[SQL_NAME_processed_at].n < 0));
    (void)read_row(res, statement, 64);
    read_cells(res, statement);
    PQclear(res);
    return 0;
}
