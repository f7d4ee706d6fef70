/* SPDX-License-Identifier: MIT
 *
 * keys.c: spec/keys.txt through the pure rules, and through the store of each driver.
 *
 * usage: keys rules|sqlite|postgres FILE
 */
#include <stdlib.h>

#include "core/fingerprint.h"
#include "core/keys.h"
#include "support/world.h"

#define COLUMNS 5
#define BODY "{\"id\":1}"

static struct world *world;
static const char *door, *file_name;

/* ---- a case --------------------------------------------------------------------------------------- */

struct spec {
    char line[512];
    char *column[COLUMNS];
};

/* The value of the word in a column, else the default; a word without a value is "". */
static const char *word(const char *column, const char *name, const char *otherwise)
{
    static char values[8][64];
    static int turn;
    size_t n = strlen(name);
    for (const char *p = column; *p != '\0';) {
        size_t length = strcspn(p, " ");
        if (length >= n && strncmp(p, name, n) == 0 && (p[n] == '=' || length == n)) {
            char *value = values[turn = (turn + 1) % 8];
            snprintf(value, 64, "%.*s", (int)(length - n - (p[n] == '=')), p + n + (p[n] == '='));
            return value;
        }
        p += length + strspn(p + length, " ");
    }
    return otherwise;
}

static int64_t time_of(const char *text)
{
    if (strcmp(text, "none") == 0)
        return SEMEL_NONE;
    if (strcmp(text, "now") == 0)
        return world->now_us;
    char *unit;
    int64_t n = strtoll(text, &unit, 10);
    int64_t seconds = *unit == 's' ? 1 : *unit == 'm' ? 60 : *unit == 'h' ? 3600 : 86400;
    return world->now_us + n * seconds * SECOND;
}

static enum semel_effect effect_of(const char *text)
{
    return text[0] == 'a' ? SEMEL_EFFECT_ATOMIC : text[0] == 'o' ? SEMEL_EFFECT_OUTSIDE : SEMEL_EFFECT_KEYED;
}

static struct semel_fp print_of(const char *text)
{
    struct semel_fp fp = {.kind = SEMEL_FP_NONE};
    if (strcmp(text, "none") == 0)
        return fp;
    fp = (struct semel_fp){.kind = text[0] == 'H' ? SEMEL_FP_HTTP : SEMEL_FP_CALLER, .n = 32};
    memset(fp.bytes, text[0], fp.n);
    return fp;
}

/* The row of the column `given`, as a whole. */
static struct semel_idempotency given(const char *column)
{
    static struct semel_tokens tokens;
    const char *status = word(column, "row", "absent");
    struct semel_idempotency row = {.scope = SEMEL_STR("alice"), .key = SEMEL_STR("key-00001")};
    row.status = status[0] == 'p'   ? SEMEL_ROW_PROCESSING
                 : status[0] == 'c' ? SEMEL_ROW_COMPLETED
                 : status[0] == 'u' ? SEMEL_ROW_UNKNOWN
                                    : SEMEL_ROW_ABSENT;
    bool completed = row.status == SEMEL_ROW_COMPLETED;
    row.created_us = row.updated_us = world->now_us - 3600 * SECOND;
    row.token = semel__token_new(&tokens, &world->rng, effect_of(word(column, "claimed", "outside")), row.created_us,
                                 SEMEL_NONE);
    row.fp = print_of(word(column, "fp", "A"));
    row.answer_us = SEMEL_ANSWER_US;
    row.keep_us = SEMEL_KEEP_US;
    row.lease_until_us = row.status == SEMEL_ROW_PROCESSING ? time_of(word(column, "lease", "+60s")) : SEMEL_NONE;
    row.code = completed ? 201 : SEMEL_NONE;
    row.answer_until_us = completed ? time_of(word(column, "answer", "+24h")) : SEMEL_NONE;
    row.key_until_us = completed ? time_of(word(column, "key", "+30d")) : SEMEL_NONE;
    if (completed && strcmp(word(column, "body", "yes"), "yes") == 0)
        row.body = SEMEL_STR(BODY);
    if (row.status == SEMEL_ROW_UNKNOWN)
        row.cause = semel__str(word(column, "cause", "timeout"));
    return row;
}

/* ---- a store --------------------------------------------------------------------------------------- */

static const char *stamp(int64_t us)
{
    static char texts[8][96];
    static int turn;
    char *text = texts[turn = (turn + 1) % 8];
    if (us == SEMEL_NONE)
        snprintf(text, 96, "NULL");
    else if (strcmp(door, "sqlite") == 0)
        snprintf(text, 96, "%lld", (long long)us);
    else
        snprintf(text, 96, "to_timestamp(0) + %lld * interval '1 microsecond'", (long long)us);
    return text;
}

static void plant(const struct semel_idempotency *row)
{
    char sql[2048], print[2 * (1 + SEMEL_FP_MAX) + 8] = "NULL", body[64] = "NULL";
    unsigned char bytes[1 + SEMEL_FP_MAX];
    bool pg = strcmp(door, "sqlite") != 0;
    size_t n = semel__fp_encode(&row->fp, bytes);
    if (n > 0) {
        size_t at = (size_t)snprintf(print, sizeof print, pg ? "'\\x" : "x'");
        for (size_t i = 0; i < n; i++)
            at += (size_t)snprintf(print + at, sizeof print - at, "%02x", bytes[i]);
        snprintf(print + at, sizeof print - at, "'");
    }
    if (semel__str_given(row->body))
        snprintf(body, sizeof body, pg ? "convert_to('%s', 'UTF8')" : "CAST('%s' AS BLOB)", BODY);
    bool completed = row->status == SEMEL_ROW_COMPLETED;
    const char *status = semel__row_status_name(row->status);
    char code[16] = "NULL", cause[40] = "NULL";
    if (completed)
        snprintf(code, sizeof code, "%d", (int)row->code);
    if (row->cause.n > 0)
        snprintf(cause, sizeof cause, "'%.*s'", (int)row->cause.n, row->cause.p);
    snprintf(
        sql, sizeof sql,
        "INSERT INTO %s (scope, key, status, token, fingerprint, created_at, updated_at, lease_until, answer_us, "
        "keep_us, cause, code, headers, body, completed_at, answer_until, key_until) VALUES ('alice', 'key-00001', "
        "'%s', %lld, %s, %s, %s, %s, %lld, %lld, %s, %s, %s, %s, %s, %s, %s)",
        pg ? "semel.idempotency" : "semel_idempotency", status, (long long)row->token, print, stamp(row->created_us),
        stamp(row->updated_us), stamp(row->lease_until_us), (long long)row->answer_us, (long long)row->keep_us, cause,
        code, completed ? "'[]'" : "NULL", body, stamp(completed ? row->created_us : SEMEL_NONE),
        stamp(row->answer_until_us), stamp(row->key_until_us));
    world_sql(world, sql);
}

static const struct semel_key_ops *keys(void)
{
    return world->store->ops->keys;
}

/* What happens, in one transaction; the verdict as the column has it. */
static void happen(const struct spec *spec, const struct semel_idempotency *row, char verdict[64])
{
    static struct semel_tokens tokens;
    const char *when = spec->column[2];
    int64_t now, n = 0, stale = row->token - (INT64_C(1) << 22);
    int64_t token = strcmp(word(when, "token", "own"), "own") == 0 ? row->token : stale;
    struct semel_error *err = &world->err;
    bool done = false;
    assert_ok(world, semel_store_begin(world->store, SEMEL_TX_OWN, &now, err));
    if (strncmp(when, "begin", 5) == 0 || strncmp(when, "claim", 5) == 0) {
        bool begin = when[0] == 'b';
        struct semel_key_claim claim = {.want = {.scope = SEMEL_STR("alice"),
                                                 .key = SEMEL_STR("key-00001"),
                                                 .fp = print_of(word(when, "fp", "A")),
                                                 .lease_until_us = begin ? SEMEL_NONE : now + 60 * SECOND,
                                                 .answer_us = SEMEL_ANSWER_US,
                                                 .keep_us = SEMEL_KEEP_US},
                                        .effect = begin ? SEMEL_EFFECT_ATOMIC
                                                        : effect_of(word(when, "effect", "outside"))};
        const struct semel_key_batch batch = {.claims = &claim,
                                              .n_claims = 1,
                                              .owner = SEMEL_STR("me"),
                                              .tokens = &tokens,
                                              .rng = &world->rng,
                                              .arena = &world->arena};
        assert_ok(world, keys()->write(world->store, &batch, now, err));
        snprintf(verdict, 64, "%s %.*s", semel__key_act_name(claim.act), (int)claim.why.n, claim.why.p);
    } else if (strncmp(when, "renew", 5) == 0) {
        assert_ok(world, keys()->renew(world->store, token, now + 60 * SECOND, &done, err));
        snprintf(verdict, 64, "%s", done ? "done" : "fenced");
    } else if (strncmp(when, "tick", 4) == 0) {
        assert_ok(world, keys()->keep(world->store, now, 1000, &n, err));
        snprintf(verdict, 64, "%s", n > 0 ? "done" : "nothing");
    } else {
        struct semel_key_ending ending = {.token = token,
                                          .end = when[0] == 'f'   ? SEMEL_KEY_END_COMPLETED
                                                 : when[0] == 'r' ? SEMEL_KEY_END_RELEASED
                                                                  : SEMEL_KEY_END_UNKNOWN,
                                          .cause = SEMEL_STR("reset"),
                                          .code = 201,
                                          .headers = SEMEL_STR("[]"),
                                          .body = SEMEL_STR(BODY)};
        const struct semel_key_batch batch = {.ends = &ending, .n_ends = 1};
        assert_ok(world, keys()->write(world->store, &batch, now, err));
        /* a store only fences; whose transaction it is the library knows */
        snprintf(verdict, 64, "%s",
                 ending.applied                            ? "done"
                 : strcmp(spec->column[3], "refused") == 0 ? "refused"
                                                           : "fenced");
    }
    /* what was begun has no end here: PostgreSQL would not commit it */
    struct semel_idempotency after;
    assert_ok(world,
              keys()->read(world->store, SEMEL_STR("alice"), SEMEL_STR("key-00001"), &world->arena, &after, err));
    if (strncmp(when, "begin", 5) == 0 && after.status == SEMEL_ROW_PROCESSING && after.token != row->token)
        return;
    assert_ok(world, semel_store_commit(world->store, err));
}

/* ---- what the row becomes -------------------------------------------------------------------------- */

#define CHECK(spec, what, condition)                                            \
    do {                                                                        \
        if (!(condition))                                                       \
            fail_msg("%s: %s is not as it should be", (spec)->column[0], what); \
    } while (0)

static void check_times(const struct spec *spec, const struct semel_idempotency *after)
{
    const char *becomes = spec->column[4], *text;
    if ((text = word(becomes, "lease", NULL)) != NULL)
        CHECK(spec, "lease", after->lease_until_us == time_of(text));
    if ((text = word(becomes, "answer", NULL)) != NULL)
        CHECK(spec, "answer", after->answer_until_us == time_of(text));
    if ((text = word(becomes, "key", NULL)) != NULL)
        CHECK(spec, "key", after->key_until_us == time_of(text));
}

static void check_row(const struct spec *spec, const struct semel_idempotency *before,
                      const struct semel_idempotency *after)
{
    const char *becomes = spec->column[4], *text;
    if (strcmp(becomes, "unchanged") == 0) {
        CHECK(spec, "status", after->status == before->status);
        CHECK(spec, "token", before->status == SEMEL_ROW_ABSENT || after->token == before->token);
        CHECK(spec, "lease", after->lease_until_us == before->lease_until_us);
        CHECK(spec, "body", semel__str_given(after->body) == semel__str_given(before->body));
        CHECK(spec, "cause", after->cause.n == before->cause.n);
        return;
    }
    CHECK(spec, "status", strncmp(becomes, semel__row_status_name(after->status), strcspn(becomes, " ")) == 0);
    if (after->status == SEMEL_ROW_ABSENT)
        return;
    check_times(spec, after);
    if ((text = word(becomes, "token", NULL)) != NULL)
        CHECK(spec, "token",
              text[0] == 's' ? after->token == before->token
                             : before->status == SEMEL_ROW_ABSENT || after->token > before->token);
    if ((text = word(becomes, "cause", NULL)) != NULL)
        CHECK(spec, "cause", strcmp(text, "none") == 0 ? after->cause.n == 0 : semel__str_eqz(after->cause, text));
    if ((text = word(becomes, "body", NULL)) != NULL)
        CHECK(spec, "body", semel__str_given(after->body) == (text[0] == 'y'));
    if ((text = word(becomes, "fp", NULL)) != NULL) {
        struct semel_fp fp = print_of(text);
        CHECK(spec, "fp", fp.kind == after->fp.kind && memcmp(fp.bytes, after->fp.bytes, fp.n) == 0);
    }
}

static void run_store(const struct spec *spec, const struct semel_idempotency *row)
{
    char verdict[64];
    struct semel_idempotency after;
    if (row->status != SEMEL_ROW_ABSENT)
        plant(row);
    happen(spec, row, verdict);
    if (strcmp(verdict, spec->column[3]) != 0)
        fail_msg("%s: %s", spec->column[0], verdict);
    assert_ok(world, keys()->read(world->store, SEMEL_STR("alice"), SEMEL_STR("key-00001"), &world->arena, &after,
                                  &world->err));
    check_row(spec, row, &after);
    if (world->store->in_tx)
        semel_store_rollback(world->store);
    world_sql(world, strcmp(door, "sqlite") == 0 ? "DELETE FROM semel_idempotency" : "DELETE FROM semel.idempotency");
    semel__arena_reset(&world->arena);
}

static void run_rules(const struct spec *spec, const struct semel_idempotency *row)
{
    char verdict[64];
    struct semel_str why;
    const char *when = spec->column[2];
    if (strncmp(when, "begin", 5) != 0 && strncmp(when, "claim", 5) != 0)
        return;
    struct semel_fp fp = print_of(word(when, "fp", "A"));
    enum semel_key_act act = semel__key_judge(row, &fp, world->now_us, &why);
    snprintf(verdict, sizeof verdict, "%s %.*s", semel__key_act_name(act), (int)why.n, why.p);
    if (strcmp(verdict, spec->column[3]) != 0)
        fail_msg("%s: %s", spec->column[0], verdict);
}

static bool read_case(FILE *file, struct spec *ret)
{
    while (fgets(ret->line, sizeof ret->line, file) != NULL) {
        char *rest = ret->line;
        if (rest[0] == '#' || rest[0] == '\n')
            continue;
        rest[strcspn(rest, "\n")] = '\0';
        for (size_t i = 0; i < COLUMNS; i++) {
            char *column = strsep(&rest, "|");
            assert_non_null(column);
            column += strspn(column, " ");
            for (size_t n = strlen(column); n > 0 && column[n - 1] == ' '; n--)
                column[n - 1] = '\0';
            ret->column[i] = column;
        }
        return true;
    }
    return false;
}

/* A1 A2 A3 A6 A7 A9 P47 P80 */
static void every_case_comes_out_as_the_table_says(void **state)
{
    static struct world pure = {.now_us = T0};
    struct spec spec;
    size_t n = 0;
    semel__random_seed(&pure.rng, 1);
    world = *state != NULL ? *state : &pure;
    FILE *file = fopen(file_name, "r");
    assert_non_null(file);
    for (; read_case(file, &spec); n++) {
        struct semel_idempotency row = given(spec.column[1]);
        if (strcmp(door, "rules") == 0)
            run_rules(&spec, &row);
        else
            run_store(&spec, &row);
    }
    fclose(file);
    assert_in_range(n, 60, 1000);
}

int main(int argc, char **argv)
{
    assert_true(argc == 3);
    door = argv[1];
    file_name = argv[2];
    bool rules = strcmp(door, "rules") == 0;
    world_driver = rules ? NULL : world_driver_named(door);
    const struct CMUnitTest tests[] = {
        rules ? (struct CMUnitTest)cmocka_unit_test(every_case_comes_out_as_the_table_says)
              : (struct CMUnitTest)cmocka_unit_test_setup_teardown(every_case_comes_out_as_the_table_says, world_setup,
                                                                   world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
