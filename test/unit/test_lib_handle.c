/* SPDX-License-Identifier: MIT
 *
 * test_lib_handle.c: opening and closing, what is refused at the door, consumers, ticks, the outbox and small things.
 */
#include "unit/handle.h"

#include <sys/wait.h>
#include <unistd.h>

#include "core/msg.h"

/* ---- handles ------------------------------------------------------------------------------------------ */

static void what_cannot_be_opened_is_told(void **state)
{
    struct handle d = {0};
    char path[64], url[80];
    (void)state;
    snprintf(path, sizeof path, "/tmp/semel-none-%ld.db", (long)getpid());
    snprintf(url, sizeof url, "sqlite:%s", path);
    d.s = (struct semel *)&d;
    assert_refused(&d, semel_open(&d.s, url, SEMEL_MIGRATE, &d.err), SEMEL_INVALID, "there is no database");
    assert_null(d.s);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_refused(&d, semel_open(&d.s, "/no/scheme", 0, &d.err), SEMEL_INVALID, "scheme");
    assert_refused(&d, semel_open(&d.s, "mysql:x", 0, &d.err), SEMEL_INVALID, "mysql");
    assert_refused(&d, semel_open(&d.s, NULL, 0, &d.err), SEMEL_INVALID, "url");
    assert_refused(&d, semel_open(NULL, url, 0, &d.err), SEMEL_INVALID, "ret");
    assert_refused(&d, semel_open(&d.s, url, SEMEL_LOOSE, &d.err), SEMEL_INVALID, "flags 0x4");
    assert_refused(&d, semel_open(&d.s, url, 64, &d.err), SEMEL_INVALID, "flags 0x40");
    assert_refused(&d, semel_wrap_sqlite(&d.s, NULL, 0, &d.err), SEMEL_INVALID, "db");
    assert_int_equal(semel_open(&d.s, url, SEMEL_MIGRATE, NULL), SEMEL_INVALID); /* err may be NULL */
    semel_close(NULL);
}

static void tables_must_be_there_or_be_asked_for(void **state)
{
    struct handle d = {0};
    (void)state;
    assert_int_equal(sqlite3_open(":memory:", &d.db), SQLITE_OK);
    assert_int_equal(semel_wrap_sqlite(&d.s, d.db, 0, &d.err), SEMEL_INVALID);
    assert_fine(&d, semel_wrap_sqlite(&d.s, d.db, SEMEL_MIGRATE, &d.err));
    assert_ptr_equal(semel_native(d.s), d.db);
    semel_close(d.s);
    assert_fine(&d, semel_wrap_sqlite(&d.s, d.db, 0, &d.err));
    semel_close(d.s);
    assert_int_equal(sqlite3_close(d.db), SQLITE_OK);
}

static void no_handle_is_refused_everywhere(void **state)
{
    struct handle d = {0};
    struct semel_msg m = mail("a", "x");
    struct semel_str settings;
    (void)state;
    assert_refused(&d, semel_inbox_begin(NULL, &m, &d.v, &d.err), SEMEL_INVALID, "handle is NULL");
    assert_refused(&d, semel_inbox_done(NULL, &m, settings = semel_str(NULL), &d.err), SEMEL_INVALID, "handle");
    assert_refused(&d, semel_inbox_claim(NULL, &m, 0, &d.v, &d.err), SEMEL_INVALID, "handle");
    assert_refused(&d, semel_inbox_finish(NULL, 1, SEMEL_DONE, settings, settings, &d.err), SEMEL_INVALID, "handle");
    assert_refused(&d, semel_inbox_put(NULL, &m, &d.v, &d.err), SEMEL_INVALID, "handle");
    assert_refused(&d, semel_tick(NULL, 1, NULL, &d.err), SEMEL_INVALID, "handle");
    assert_refused(&d, semel_consumer_get(NULL, "c", &settings, &d.err), SEMEL_INVALID, "handle");
    assert_refused(&d, semel_outbox_put(NULL, NULL, NULL, &d.err), SEMEL_INVALID, "handle");
    assert_null(semel_native(NULL));
    assert_int_equal(semel_pending(NULL), 0);
    semel_ended(NULL);
}

static void handle_is_dead_in_the_child_of_a_fork(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        semel_status status = semel_inbox_claim(d->s, &m, 0, &d->v, &d->err);
        semel_close(d->s); /* must not touch what is the parent's */
        _exit(status == SEMEL_CLOSED ? 0 : 1);
    }
    int code;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    run_once(d, &m);
}

static void connection_has_one_handle_that_watches_it(void **state)
{
    /* P59: the second one would take the hooks from the first */
    struct handle *d = *state;
    struct semel *second = NULL;
    struct semel_msg m = mail("a", "x");
    assert_refused(d, semel_wrap_sqlite(&second, d->db, 0, &d->err), SEMEL_INVALID, "another handle");
    assert_null(second);
    assert_fine(d, semel_wrap_sqlite(&second, d->db, SEMEL_LOOSE, &d->err));
    semel_close(second);
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
    assert_string_equal(state_of(d, "a"), "absent");
}

static void begin_without_done_cannot_commit_after_its_handle_was_closed(void **state)
{
    /* P59 */
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    for (int again = 0; again < 2; again++) {
        sql(d, "BEGIN IMMEDIATE");
        begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
        effect(d, "a");
        semel_close(d->s);
        if (again)
            assert_fine(d, semel__handle_wrap(&d->s, d->db, 0, &d->options, &d->err));
        assert_int_equal(sql_try(d, "COMMIT"), SQLITE_CONSTRAINT_COMMITHOOK);
        assert_int_equal(effects(d, NULL), 0);
        if (!again)
            assert_fine(d, semel__handle_wrap(&d->s, d->db, 0, &d->options, &d->err));
    }
    run_once(d, &m); /* and nothing of it sticks */
    semel_close(d->s);
    effect(d, "b");
    assert_int_equal(effects(d, NULL), 2);
    assert_fine(d, semel__handle_wrap(&d->s, d->db, 0, &d->options, &d->err));
}

/* The table that tells of them stays in the transaction when its handle goes, and the next one has its own. */
static void savepoints_are_told_to_the_handle_that_is_open(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    done(d, &a);
    sql(d, "SAVEPOINT s");
    semel_close(d->s);
    sql(d, "SAVEPOINT t; ROLLBACK TO t; RELEASE t");
    assert_fine(d, semel__handle_wrap(&d->s, d->db, 0, &d->options, &d->err));
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(semel_pending(d->s), 1);
    sql(d, "ROLLBACK TO s");
    assert_int_equal(semel_pending(d->s), 0);
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "SAVEPOINT t");
    done(d, &b);
    sql(d, "ROLLBACK TO t");
    assert_commit_refused(d);
    run_once(d, &a);
}

/* It takes the table that tells of them out of the transaction; the next begin looks itself. */
static void savepoints_are_noticed_after_a_close_that_was_refused(void **state)
{
    struct handle *d = *state;
    struct semel_msg a = mail("a", "x"), b = mail("b", "x");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &a, SEMEL_RUN, SEMEL_WHY_NEW);
    effect(d, "a");
    sql(d, "SAVEPOINT s");
    done(d, &a);
    assert_int_equal(sqlite3_close(d->db), SQLITE_BUSY);
    sql(d, "ROLLBACK TO s");
    begin(d, &b, SEMEL_RUN, SEMEL_WHY_NEW);
    assert_int_equal(semel_pending(d->s), 2);
    done(d, &b);
    assert_commit_refused(d);
    assert_int_equal(effects(d, NULL), 0);
    run_once(d, &a);
}

static void temporary_tables_of_the_same_name_change_nothing(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    sql(d, "CREATE TEMP TABLE semel_inbox AS SELECT * FROM main.semel_inbox;"
           "CREATE TEMP TABLE semel_counter AS SELECT * FROM main.semel_counter;"
           "CREATE TEMP VIEW semel_consumer AS SELECT 1");
    run_once(d, &m);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM temp.semel_inbox"), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM main.semel_inbox WHERE status = 'completed'"), 1);
}

static void last_insert_rowid_stays_the_callers_own(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    struct semel_event e;
    semel_event_init(&e);
    e.aggregatetype = e.aggregateid = e.type = semel_str("x");
    sql(d, "CREATE TABLE invoice (id INTEGER PRIMARY KEY); BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "INSERT INTO invoice VALUES (77)");
    assert_fine(d, semel_outbox_put(d->s, &e, NULL, &d->err));
    done(d, &m);
    assert_int_equal(sqlite3_last_insert_rowid(d->db), 77);
    sql(d, "COMMIT");
}

static void broken_handle_answers_closed(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    int64_t now_us;
    assert_int_equal(semel__enter(d->s, SEMEL_WHOSE_EITHER, &d->err), SEMEL_OK);
    assert_fine(d, semel_store_begin(d->s->store, SEMEL_TX_OWN, &now_us, &d->err));
    assert_refused(d, semel__leave(d->s, SEMEL_OK, &d->err), SEMEL_CLOSED, "left open");
    assert_int_equal(sqlite3_get_autocommit(d->db), 1);
    assert_refused(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err), SEMEL_CLOSED, "broken");
}

/* ---- what a message must be --------------------------------------------------------------------------- */

static void wrong_fields_are_named(void **state)
{
    struct handle *d = *state;
    static char long_text[1100], giant[SEMEL_HEADERS_MAX + 8];
    memset(long_text, 'x', sizeof long_text);
    memset(giant, ' ', sizeof giant);
    const struct semel_str too_long = {long_text, 256}, bad = {"\xc3\x28", 2}, nowhere = {NULL, 5};
    const struct {
        size_t at;
        struct semel_str value;
        const char *word;
    } wrong[] = {
        {offsetof(struct semel_msg, consumer), {"", 0}, "consumer is empty"},
        {offsetof(struct semel_msg, consumer), too_long, "consumer has 256 bytes"},
        {offsetof(struct semel_msg, consumer), nowhere, "consumer has 5 bytes at NULL"},
        {offsetof(struct semel_msg, source), bad, "source is not UTF-8"},
        {offsetof(struct semel_msg, id), {"", 0}, "id is empty"},
        {offsetof(struct semel_msg, id), too_long, "id has 256 bytes"},
        {offsetof(struct semel_msg, id), {"a\0b", 3}, "id is not UTF-8 text without NUL"},
        {offsetof(struct semel_msg, type), bad, "type"},
        {offsetof(struct semel_msg, payload), nowhere, "payload"},
        {offsetof(struct semel_msg, headers), {"[]", 2}, "headers must be the text of a JSON object"},
        {offsetof(struct semel_msg, headers), {"{\"a\":}", 6}, "headers"},
        {offsetof(struct semel_msg, headers), {giant, sizeof giant}, "headers"},
        {offsetof(struct semel_msg, business_key), {"", 0}, "business_key is empty"},
        {offsetof(struct semel_msg, order_key), too_long, "order_key"},
        {offsetof(struct semel_msg, fingerprint), {"", 0}, "fingerprint has 0 bytes"},
        {offsetof(struct semel_msg, fingerprint), {long_text, 64}, "fingerprint has 64 bytes"},
        {offsetof(struct semel_msg, position), {long_text, 1001}, "position"},
        {offsetof(struct semel_msg, traceparent), bad, "traceparent"},
    };
    sql(d, "BEGIN IMMEDIATE");
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct semel_msg m = mail("a", "x");
        memcpy((char *)&m + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
        assert_refused(d, semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID, wrong[i].word);
        assert_refused(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err), SEMEL_INVALID, wrong[i].word);
        assert_refused(d, semel_inbox_put(d->s, &m, &d->v, &d->err), SEMEL_INVALID, wrong[i].word);
    }
    struct semel_msg m = mail("a", "x");
    m.version = -1;
    assert_refused(d, semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID, "version is -1");
    m = mail("a", "x");
    m.delivery = -1;
    assert_refused(d, semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID, "delivery is -1");
    m = mail("a", "x");
    m.size = 0;
    assert_refused(d, semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID, "msg.size is 0");
    m.size = (size_t)1 << 40; /* garbage: the next message of a batch would be looked for there */
    assert_refused(d, semel_inbox_begin(d->s, &m, &d->v, &d->err), SEMEL_INVALID, "msg.size is 1099511627776");
    assert_refused(d, semel_inbox_begin(d->s, NULL, &d->v, &d->err), SEMEL_INVALID, "msg is NULL");
    m = mail("a", "x");
    assert_refused(d, semel_inbox_begin(d->s, &m, NULL, &d->err), SEMEL_INVALID, "ret is NULL");
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox"), 0);
    assert_int_equal(sqlite3_get_autocommit(d->db), 0); /* the transaction is still the caller's */
    sql(d, "COMMIT");
}

static void everything_at_its_bound_is_accepted(void **state)
{
    struct handle *d = *state;
    static char text[1000];
    memset(text, 'x', sizeof text);
    const struct semel_str most = {text, SEMEL_ID_MAX};
    struct semel_msg m;
    semel_msg_init(&m);
    m.consumer = m.source = m.id = m.type = m.business_key = m.order_key = m.traceparent = most;
    m.fingerprint = (struct semel_str){text, 63};
    m.position = (struct semel_str){text, 1000};
    m.headers = semel_str(" {\"h\": [1, \"two\"]}");
    m.payload = (struct semel_str){"\0\xff", 2};
    m.version = INT64_MAX - 1;
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_GAP);
    sql(d, "COMMIT");
    assert_int_equal(sql_int(d, "SELECT length(payload) FROM semel_inbox"), 2);
}

/* ---- consumers and time ------------------------------------------------------------------------------- */

/* A3 P75 */
static void versions_over_keys_that_exist_leave_a_hint(void **state)
{
    struct handle *d = *state;
    struct semel_msg m = mail("a", "x");
    struct semel_str settings;
    m.order_key = semel_str("k");
    assert_null(semel_hint(NULL));
    set(d, "{\"order\": \"arrival\"}");
    assert_null(semel_hint(d->s));
    assert_fine(d, semel_inbox_put(d->s, &m, &d->v, &d->err));
    set(d, "{\"order\": \"version\"}");
    assert_string_equal(semel_hint(d->s), "order keys exist already: is first_version \"any\" right for them?");
    assert_fine(d, semel_consumer_get(d->s, "c", &settings, &d->err));
    assert_null(semel_hint(d->s)); /* of another call */
    set(d, "{\"first_version\": \"any\"}");
    assert_null(semel_hint(d->s));
    set(d, "{\"first_version\": 1}");
    assert_non_null(semel_hint(d->s));
    assert_refused(d, semel_consumer_set(d->s, "c", "{\"retry_mx\": 3}", &d->err), SEMEL_INVALID, "retry_mx");
    assert_null(semel_hint(d->s));
}

static void settings_are_checked_stored_and_shown(void **state)
{
    struct handle *d = *state;
    struct semel_str settings;
    set(d, "{\"retry_max\": 3, \"lease\": \"90s\"}");
    assert_fine(d, semel_consumer_get(d->s, "c", &settings, &d->err));
    assert_non_null(strstr(settings.p, "\"retry_max\":3"));
    assert_non_null(strstr(settings.p, "\"lease\":\"90s\""));
    assert_non_null(strstr(settings.p, "\"effect\":\"atomic\""));
    assert_refused(d, semel_consumer_set(d->s, "c", "{\"retry_mx\": 3}", &d->err), SEMEL_INVALID, "retry_mx");
    assert_refused(d, semel_consumer_set(d->s, "c", "{\"retry_max\": 0}", &d->err), SEMEL_INVALID, "retry_max");
    assert_refused(d, semel_consumer_set(d->s, "c", NULL, &d->err), SEMEL_INVALID, "settings");
    assert_refused(d, semel_consumer_set(d->s, "", "{}", &d->err), SEMEL_INVALID, "consumer");
    assert_refused(d, semel_consumer_get(d->s, "c", NULL, &d->err), SEMEL_INVALID, "ret_settings");
    sql(d, "BEGIN IMMEDIATE");
    set(d, "{}");
    sql(d, "ROLLBACK");
    assert_fine(d, semel_consumer_get(d->s, "c", &settings, &d->err));
    assert_non_null(strstr(settings.p, "\"retry_max\":3"));
}

static void tick_decides_gaps_that_timed_out(void **state)
{
    /* I12, T9: without anybody who takes work */
    struct handle *d = *state;
    size_t n;
    struct semel_msg m = keyed("v3", "k", 3), other = keyed("w9", "l", 9);
    set(d, "{\"order\": \"version\", \"gap_timeout\": \"10s\"}");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_GAP);
    begin(d, &other, SEMEL_ACK, SEMEL_WHY_GAP);
    sql(d, "COMMIT");
    pass(d, 9 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 0);
    pass(d, 2 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 1, &n, &d->err));
    assert_int_equal(n, 1); /* bounded */
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 1);
    assert_string_equal(state_of(d, "v3"), "dead");
    assert_string_equal(state_of(d, "w9"), "dead");
}

static void tick_leaves_to_the_workers_what_may_run(void **state)
{
    struct handle *d = *state;
    size_t n;
    struct semel_msg m = keyed("v3", "k", 3), stored = mail("p", "x");
    set(d, "{\"order\": \"version\", \"gap_timeout\": \"10s\", \"on_gap\": \"apply\"}");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_ACK, SEMEL_WHY_GAP);
    sql(d, "COMMIT");
    stored.consumer = semel_str("other");
    assert_fine(d, semel_inbox_put(d->s, &stored, &d->v, &d->err));
    pass(d, 11 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 0);
    assert_string_equal(state_of(d, "v3"), "waiting");
    sql(d, "BEGIN IMMEDIATE");
    begin(d, &m, SEMEL_RUN, SEMEL_WHY_NEW);
    sql(d, "ROLLBACK");
}

static void claim_for(struct handle *d, const char *consumer)
{
    struct semel_msg m = mail("a", "x");
    m.consumer = semel_str(consumer);
    assert_fine(d, semel_consumer_set(d->s, consumer, "{\"effect\": \"atomic\"}", &d->err));
    assert_fine(d, semel_inbox_claim(d->s, &m, 0, &d->v, &d->err));
}

static void tick_gives_every_consumer_its_turn(void **state)
{
    struct handle *d = *state;
    size_t n;
    claim_for(d, "one");
    claim_for(d, "three");
    claim_for(d, "two");
    pass(d, 61 * SECOND_US);
    for (int i = 1; i <= 3; i++) {
        assert_fine(d, semel_tick(d->s, 1, &n, &d->err));
        assert_int_equal(n, 1);
        assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox WHERE status = 'failed'"), i);
    }
    assert_refused(d, semel_tick(d->s, 0, &n, &d->err), SEMEL_INVALID, "max");
}

static void tick_recovers_for_all_before_it_purges(void **state)
{
    /* A5: what holds up messages must not starve behind what is old */
    struct handle *d = *state;
    size_t n;
    sql(d, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) INSERT INTO semel_inbox "
           "(arrival, consumer, source, message_id, status, attempts, received_at, updated_at, processed_at) SELECT "
           "1000 + i, iif(i % 2, 'one', 'two'), 's', 'old-' || i, 'completed', 1, 1, 1, 1 FROM n");
    claim_for(d, "one");
    claim_for(d, "two");
    pass(d, 61 * SECOND_US);
    assert_fine(d, semel_tick(d->s, 2, &n, &d->err));
    assert_int_equal(n, 2);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox WHERE status = 'failed'"), 2);
    assert_fine(d, semel_tick(d->s, 100, &n, &d->err));
    assert_int_equal(n, 20);
}

static void tick_goes_on_past_a_consumer_whose_settings_are_damaged(void **state)
{
    struct handle *d = *state;
    size_t n;
    claim_for(d, "bad");
    claim_for(d, "good");
    sql(d,
        "INSERT OR REPLACE INTO semel_consumer (consumer, settings, updated_at) VALUES ('bad', '{\"lease\": 7}', 0)");
    pass(d, 61 * SECOND_US);
    assert_refused(d, semel_tick(d->s, 100, &n, &d->err), SEMEL_INVALID, "lease");
    assert_int_equal(n, 1);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_inbox WHERE consumer = 'good' AND status = 'failed'"), 1);
}

/* ---- the outbox and small things ---------------------------------------------------------------------- */

static void event_leaves_only_with_the_commit(void **state)
{
    /* O1, O4 */
    struct handle *d = *state;
    struct semel_event e;
    char id[SEMEL_EVENT_ID_SIZE];
    semel_event_init(&e);
    e.aggregatetype = semel_str("order");
    e.aggregateid = semel_str("7");
    e.type = semel_str("placed");
    e.lock = true; /* SQLite needs none */
    sql(d, "BEGIN IMMEDIATE");
    assert_fine(d, semel_outbox_put(d->s, &e, id, &d->err));
    sql(d, "ROLLBACK");
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_outbox"), 0);
    assert_fine(d, semel_outbox_put(d->s, &e, id, &d->err));
    assert_int_equal(strlen(id), 36);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM semel_outbox"), 1);
    e.id = semel_str(id);
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "there already");
    e.id = semel_str("7");
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "UUID");
    e.id = semel_str(NULL);
    e.headers = semel_str("no");
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "headers");
    e.headers = semel_str("{\"a\": 1, \"Webhook-Id\": 2}");
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "written by Semel");
    e.headers = semel_str(NULL);
    e.type = semel_str(NULL);
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "type");
    e.payload = (struct semel_str){NULL, 1};
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "NULL");
    e.size = 1;
    assert_refused(d, semel_outbox_put(d->s, &e, id, &d->err), SEMEL_INVALID, "event.size is 1");
    assert_refused(d, semel_outbox_put(d->s, NULL, id, &d->err), SEMEL_INVALID, "event is NULL");
}

static void step_key_is_the_same_everywhere(void **state)
{
    /* E1 */
    struct handle d = {0};
    struct semel_msg m = mail("m", "x");
    char a[SEMEL_STEP_KEY_SIZE], b[SEMEL_STEP_KEY_SIZE];
    (void)state;
    m.source = semel_str("s");
    assert_fine(&d, semel_step_key(&m, "charge", a, &d.err));
    assert_true(semel__step_key(SEMEL_STR("c"), SEMEL_STR("s"), SEMEL_STR("m"), SEMEL_STR("charge"), b));
    assert_string_equal(a, b);
    assert_fine(&d, semel_step_key(&m, "refund", b, &d.err));
    assert_string_not_equal(a, b);
    assert_refused(&d, semel_step_key(&m, NULL, a, &d.err), SEMEL_INVALID, "step");
    assert_refused(&d, semel_step_key(&m, "x", NULL, &d.err), SEMEL_INVALID, "ret_key");
    assert_refused(&d, semel_step_key(NULL, "x", a, &d.err), SEMEL_INVALID, "msg");
    m.id = semel_str(NULL);
    assert_refused(&d, semel_step_key(&m, "x", a, &d.err), SEMEL_INVALID, "id");
}

static void everything_has_a_name(void **state)
{
    struct semel_error err;
    (void)state;
    assert_string_equal(semel_version(), "0.1.0");
    assert_string_equal(semel_act_name(SEMEL_RUN), "run");
    assert_string_equal(semel_why_name(SEMEL_WHY_BUSINESS), "business_duplicate");
    assert_string_equal(semel_row_status_name(SEMEL_ROW_QUARANTINED), "quarantined");
    assert_string_equal(semel_class_name(SEMEL_CLASS_LEASE), "lease_expired");
    assert_string_equal(semel_result_name(SEMEL_MAYBE), "maybe");
    assert_string_equal(semel_status_text(SEMEL_OK), "ok");
    assert_string_equal(semel_act_name((enum semel_act)99), "?");
    assert_int_equal(semel_fail(&err, SEMEL_CLASS_ENVIRONMENT, NULL), SEMEL_RETRY);
    assert_int_equal(semel_fail(NULL, SEMEL_CLASS_PERMANENT, "x"), SEMEL_INVALID);
    assert_int_equal(semel_fail(&err, SEMEL_CLASS_GAP, "x"), SEMEL_INVALID);
    assert_int_equal(err.cls, SEMEL_CLASS_TRANSIENT);
    assert_int_equal(semel_fail_sqlite(NULL, SQLITE_DONE, &err), SEMEL_INVALID);
    assert_int_equal(semel_fail_sqlite(NULL, SQLITE_FULL, &err), SEMEL_RETRY);
    assert_int_equal(semel_reply_set(NULL, SEMEL_DONE, semel_str(NULL), semel_str(NULL)), SEMEL_INVALID);
    semel_named_add(NULL, semel_str("s"), semel_str("i"));
    semel_msg_init(NULL);
    semel_verdict_init(NULL);
    semel_event_init(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_opened_is_told),
        cmocka_unit_test(tables_must_be_there_or_be_asked_for),
        cmocka_unit_test(no_handle_is_refused_everywhere),
        ON_FILE(handle_is_dead_in_the_child_of_a_fork),
        ON_BOTH(connection_has_one_handle_that_watches_it),
        ON_WRAPPED(begin_without_done_cannot_commit_after_its_handle_was_closed),
        ON_WRAPPED(savepoints_are_told_to_the_handle_that_is_open),
        ON_WRAPPED(savepoints_are_noticed_after_a_close_that_was_refused),
        ON_BOTH(temporary_tables_of_the_same_name_change_nothing),
        ON_BOTH(last_insert_rowid_stays_the_callers_own),
        ON_OWN(broken_handle_answers_closed),
        ON_OWN(wrong_fields_are_named),
        ON_OWN(everything_at_its_bound_is_accepted),
        ON_BOTH(versions_over_keys_that_exist_leave_a_hint),
        ON_BOTH(settings_are_checked_stored_and_shown),
        ON_BOTH(tick_decides_gaps_that_timed_out),
        ON_OWN(tick_leaves_to_the_workers_what_may_run),
        ON_OWN(tick_gives_every_consumer_its_turn),
        ON_OWN(tick_recovers_for_all_before_it_purges),
        ON_OWN(tick_goes_on_past_a_consumer_whose_settings_are_damaged),
        ON_BOTH(event_leaves_only_with_the_commit),
        cmocka_unit_test(step_key_is_the_same_everywhere),
        cmocka_unit_test(everything_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
