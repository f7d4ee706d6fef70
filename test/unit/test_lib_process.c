/* SPDX-License-Identifier: MIT
 *
 * test_lib_process.c: batches and stored work in transactions of the library, with handlers that behave and handlers
 * that do not.
 */
#include "unit/handle.h"

#define NOTHING semel_str(NULL)
#define MAX 8

/* The handler does what the payload says. */
struct handling {
    struct handle *d;
    char trace[256]; /* ID:ATTEMPT ... */
    int mended;      /* every payload is `ok` */
    semel_status inner;
    struct semel_error inner_err;
};

static void trace(struct handling *w, struct semel_str id, int attempt)
{
    size_t n = strlen(w->trace);
    snprintf(w->trace + n, sizeof w->trace - n, "%.*s:%d ", (int)id.n, id.p, attempt);
}

static semel_status put_event(struct semel *s, struct semel_str id, struct semel_error *err)
{
    struct semel_event event;
    semel_event_init(&event);
    event.aggregatetype = semel_str("order");
    event.aggregateid = id;
    event.type = semel_str("made");
    event.payload = semel_str("{}");
    return semel_outbox_put(s, &event, NULL, err);
}

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    struct handling *w = ctx;
    struct semel_str what = w->mended ? semel_str("ok") : msg->payload;
    char id[64];
    snprintf(id, sizeof id, "%.*s", (int)msg->id.n, msg->id.p);
    trace(w, msg->id, attempt);
    effect(w->d, id);
    if (semel__str_eqz(what, "reject"))
        return semel_reply_set(reply, SEMEL_REJECTED, semel_str("no"), NOTHING);
    if (semel__str_eqz(what, "outcome"))
        return semel_reply_set(reply, SEMEL_DONE, NOTHING, semel_str("{\"ok\":true}"));
    if (semel__str_eqz(what, "transient"))
        return semel_fail(err, SEMEL_CLASS_TRANSIENT, "not\tnow");
    if (semel__str_eqz(what, "sql"))
        return semel_fail_sqlite(s, sqlite3_exec(semel_native(s), "INSERT INTO effect VALUES (NULL)", NULL, NULL, NULL),
                                 err);
    if (semel__str_eqz(what, "world"))
        return semel_fail(err, SEMEL_CLASS_ENVIRONMENT, "the other side is down");
    if (semel__str_eqz(what, "silent"))
        return SEMEL_INVALID;
    if (semel__str_eqz(what, "garbage"))
        return (semel_status)42;
    if (semel__str_eqz(what, "event"))
        return put_event(s, msg->id, err);
    if (semel__str_eqz(what, "event, then fail"))
        return put_event(s, msg->id, err) == SEMEL_OK ? semel_fail(err, SEMEL_CLASS_TRANSIENT, "no") : SEMEL_CLOSED;
    if (semel__str_eqz(what, "commit"))
        return sqlite3_exec(semel_native(s), "COMMIT", NULL, NULL, NULL) == SQLITE_OK ? SEMEL_OK : SEMEL_INVALID;
    if (semel__str_eqz(what, "begin")) {
        struct semel_verdict v;
        w->inner = semel_inbox_begin(s, msg, &v, &w->inner_err);
        semel_close(s); /* ignored */
    }
    return SEMEL_OK;
}

static struct semel_verdict out[MAX];

static semel_status process(struct handling *w, const struct semel_msg *msgs, size_t n)
{
    w->trace[0] = '\0';
    return semel_inbox_process(w->d->s, msgs, n, handle, w, out, &w->d->err);
}

static size_t work(struct handling *w)
{
    size_t n = 0;
    w->trace[0] = '\0';
    pass(w->d, 20 * SECOND_US);
    assert_fine(w->d, semel_inbox_work(w->d->s, "c", 100, handle, w, &n, &w->d->err));
    return n;
}

/* ---- batches ------------------------------------------------------------------------------------------ */

static void batch_runs_each_message_once(void **state)
{
    /* I2, I9, T6 */
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "ok"), mail("b", "outcome"), mail("a", "ok"), mail("c", "reject")};
    assert_fine(w.d, process(&w, msgs, COUNT(msgs)));
    assert_verdict(&out[0], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_verdict(&out[1], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_str(out[1].outcome, "{\"ok\":true}");
    assert_verdict(&out[2], SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
    assert_verdict(&out[3], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_REJECTED);
    assert_int_equal(effects(w.d, NULL), 2);
    assert_fine(w.d, process(&w, msgs, COUNT(msgs)));
    assert_string_equal(w.trace, "");
    for (size_t i = 0; i < COUNT(msgs); i++)
        assert_int_equal(out[i].why, SEMEL_WHY_DUPLICATE);
    assert_str(out[1].outcome, "{\"ok\":true}");
}

static void failed_message_is_kept_and_run_by_work(void **state)
{
    /* I6, I15, T3 */
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "ok"), mail("b", "transient"), mail("c", "sql"), mail("d", "silent")};
    assert_fine(w.d, process(&w, msgs, COUNT(msgs)));
    assert_verdict(&out[0], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_verdict(&out[1], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_verdict(&out[2], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_DEAD); /* a violated constraint is permanent */
    assert_verdict(&out[3], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_FAILED);
    assert_int_equal(effects(w.d, NULL), 1);
    assert_int_equal(sql_int(w.d, "SELECT error_text = 'not?now' FROM semel_inbox WHERE message_id = 'b'"), 1);
    assert_int_equal(sql_int(w.d,
                             "SELECT error_text LIKE '%without an error text' FROM semel_inbox WHERE message_id = 'd'"),
                     1);
    w.mended = 1;
    assert_int_equal(work(&w), 2);
    assert_string_equal(state_of(w.d, "b"), "completed");
    assert_int_equal(effects(w.d, "b"), 1);
    assert_int_equal(work(&w), 0);
}

static void world_that_fails_charges_nobody(void **state)
{
    /* P63, I6 */
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "ok"), mail("b", "world")};
    assert_int_equal(process(&w, msgs, 2), SEMEL_RETRY);
    assert_int_equal(w.d->err.cls, SEMEL_CLASS_ENVIRONMENT);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(out[i].act, SEMEL_LATER);
    assert_int_equal(effects(w.d, NULL), 0);
    struct semel_msg garbage = mail("c", "garbage");
    assert_refused(w.d, process(&w, &garbage, 1), SEMEL_INVALID, "returned 42");
    assert_int_equal(sql_int(w.d, "SELECT count(*) FROM semel_inbox"), 0);
}

static void order_of_a_key_survives_a_failure(void **state)
{
    /* I13 */
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {keyed("a1", "k", SEMEL_NONE), keyed("a2", "k", SEMEL_NONE), keyed("b", "l", SEMEL_NONE)};
    msgs[0].payload = semel_str("transient");
    assert_fine(w.d, process(&w, msgs, COUNT(msgs)));
    assert_verdict(&out[1], SEMEL_ACK, SEMEL_WHY_BLOCKED, SEMEL_ROW_WAITING);
    assert_verdict(&out[2], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    w.mended = 1;
    assert_int_equal(work(&w), 2);
    assert_string_equal(w.trace, "a1:2 a2:1 ");
}

static void poison_fields_do_not_stall_the_batch(void **state)
{
    /* I15 */
    struct handling w = {.d = *state};
    char long_id[300];
    memset(long_id, 'x', sizeof long_id);
    struct semel_msg msgs[] = {mail("a", "ok"), mail("b", "ok"), mail("c", "ok"), mail("d", "ok"), mail("e", "ok")};
    msgs[1].id = (struct semel_str){long_id, sizeof long_id};
    msgs[2].order_key = semel_str("");
    msgs[3].version = -7;
    msgs[4].type = (struct semel_str){"\xff", 1}; /* for people only: not worth a dead letter */
    assert_fine(w.d, process(&w, msgs, COUNT(msgs)));
    assert_verdict(&out[0], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_verdict(&out[1], SEMEL_ACK, SEMEL_WHY_NO_ID, SEMEL_ROW_QUARANTINED);
    assert_verdict(&out[2], SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_verdict(&out[3], SEMEL_ACK, SEMEL_WHY_DEAD, SEMEL_ROW_DEAD);
    assert_verdict(&out[4], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(sql_int(w.d, "SELECT error_text LIKE 'version is -7%' FROM semel_inbox WHERE message_id = 'd'"),
                     1);
}

static void wrong_calls_are_refused_and_leave_everything_later(void **state)
{
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "ok"), mail("b", "ok")};
    static struct semel_msg many[1];
    assert_refused(w.d, semel_inbox_process(w.d->s, msgs, 2, NULL, &w, out, &w.d->err), SEMEL_INVALID, "handler");
    assert_refused(w.d, semel_inbox_process(w.d->s, NULL, 2, handle, &w, out, &w.d->err), SEMEL_INVALID, "msgs");
    assert_refused(w.d, semel_inbox_process(w.d->s, msgs, 2, handle, &w, NULL, &w.d->err), SEMEL_INVALID, "ret");
    assert_refused(w.d, semel_inbox_process(w.d->s, many, 10001, handle, &w, out, &w.d->err), SEMEL_INVALID, "10001");
    msgs[1].consumer = semel_str("other");
    assert_refused(w.d, process(&w, msgs, 2), SEMEL_INVALID, "msgs[1]");
    msgs[1] = mail("b", "ok");
    msgs[1].headers = semel_str("[1]");
    assert_refused(w.d, process(&w, msgs, 2), SEMEL_INVALID, "msgs[1]: headers");
    msgs[1] = mail("b", "ok");
    msgs[1].size = 3;
    assert_refused(w.d, process(&w, msgs, 2), SEMEL_INVALID, "msgs[1]: size");
    assert_int_equal(out[0].act, SEMEL_LATER);
    assert_int_equal(out[1].act, SEMEL_LATER);
    assert_fine(w.d, semel_inbox_process(w.d->s, NULL, 0, handle, &w, NULL, &w.d->err));
    assert_int_equal(sql_int(w.d, "SELECT count(*) FROM semel_inbox"), 0);
}

static void process_and_work_are_refused_inside_a_transaction(void **state)
{
    struct handling w = {.d = *state};
    struct semel_msg m = mail("a", "ok");
    sql(w.d, "BEGIN");
    assert_refused(w.d, process(&w, &m, 1), SEMEL_INVALID, "end yours first");
    assert_int_equal(out[0].act, SEMEL_LATER);
    assert_refused(w.d, semel_inbox_work(w.d->s, "c", 1, handle, &w, NULL, &w.d->err), SEMEL_INVALID, "yours");
    sql(w.d, "ROLLBACK");
    assert_refused(w.d, semel_inbox_work(w.d->s, "c", 0, handle, &w, NULL, &w.d->err), SEMEL_INVALID, "max");
    assert_refused(w.d, semel_inbox_work(w.d->s, "c", 1, NULL, &w, NULL, &w.d->err), SEMEL_INVALID, "handler");
    assert_refused(w.d, semel_inbox_work(w.d->s, "", 1, handle, &w, NULL, &w.d->err), SEMEL_INVALID, "consumer");
    assert_fine(w.d, process(&w, &m, 1));
}

static void later_and_longer_message_struct_is_walked_by_its_size(void **state)
{
    struct handling w = {.d = *state};
    struct {
        struct semel_msg msg;
        int64_t news[3];
    } msgs[2] = {{.msg = mail("a", "ok")}, {.msg = mail("b", "ok")}};
    msgs[0].msg.size = msgs[1].msg.size = sizeof msgs[0];
    assert_fine(w.d, process(&w, &msgs[0].msg, 2));
    assert_string_equal(w.trace, "a:1 b:1 ");
}

/* ---- inside a handler --------------------------------------------------------------------------------- */

static void handler_may_emit_events_which_share_its_fate(void **state)
{
    /* I21, O1 */
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "event"), mail("b", "event, then fail")};
    assert_fine(w.d, process(&w, msgs, 2));
    assert_int_equal(sql_int(w.d, "SELECT count(*) FROM semel_outbox"), 1);
    assert_int_equal(sql_int(w.d, "SELECT count(*) FROM semel_outbox WHERE aggregateid = 'a'"), 1);
}

static void handler_with_an_outside_effect_may_emit_events_too(void **state)
{
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "event"), mail("b", "event"), mail("c", "ok")};
    set(w.d, "{\"effect\": \"outside\"}");
    assert_fine(w.d, process(&w, msgs, 3));
    for (size_t i = 0; i < 3; i++)
        assert_verdict(&out[i], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_int_equal(sql_int(w.d, "SELECT count(*) FROM semel_outbox"), 2);
}

static void handler_must_not_call_back_into_the_handle(void **state)
{
    struct handling w = {.d = *state};
    struct semel_msg m = mail("a", "begin");
    assert_fine(w.d, process(&w, &m, 1));
    assert_int_equal(w.inner, SEMEL_INVALID);
    assert_non_null(strstr(w.inner_err.text, "inside a handler"));
    assert_string_equal(state_of(w.d, "a"), "completed");
}

static void handler_cannot_end_the_transaction(void **state)
{
    /* P58 */
    struct handling w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "ok"), mail("b", "commit")};
    assert_fine(w.d, process(&w, msgs, 2));
    assert_verdict(&out[0], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
    assert_true(out[1].status == SEMEL_ROW_FAILED || out[1].status == SEMEL_ROW_DEAD);
    assert_int_equal(effects(w.d, "a"), 1);
    assert_int_equal(effects(w.d, "b"), 0);
}

/* ---- sets --------------------------------------------------------------------------------------------- */

enum set_mode { SET_ALL, SET_FORGETS, SET_FAILS, SET_BACKWARDS, SET_REPEATS_BACKWARDS };

struct set_world {
    struct handle *d;
    enum set_mode mode;
    unsigned calls;
};

static semel_status handle_set(void *ctx, struct semel *s, const struct semel_msg *msgs, size_t n,
                               struct semel_named *named, struct semel_error *err)
{
    struct set_world *w = ctx;
    (void)s;
    w->calls++;
    for (size_t i = 0; i < n; i++) {
        char id[64];
        snprintf(id, sizeof id, "%.*s", (int)msgs[i].id.n, msgs[i].id.p);
        assert_str(msgs[i].consumer, "c");
        if (w->mode == SET_FAILS && msgs[i].id.p[0] == 'b')
            return semel_fail(err, SEMEL_CLASS_PERMANENT, "no");
        effect(w->d, id);
        if (w->mode < SET_BACKWARDS && (w->mode != SET_FORGETS || msgs[i].id.p[0] != 'b'))
            semel_named_add(named, msgs[i].source, msgs[i].id);
    }
    for (size_t i = n; w->mode >= SET_BACKWARDS && i-- > 0;) {
        semel_named_add(named, msgs[i].source, msgs[i].id);
        if (w->mode == SET_REPEATS_BACKWARDS && i + 2 < n)
            semel_named_add(named, msgs[i + 2].source, msgs[i + 2].id);
    }
    return SEMEL_OK;
}

static void set_is_one_call_for_many_messages(void **state)
{
    struct set_world w = {.d = *state};
    struct semel_msg msgs[] = {mail("a", "1"), mail("b", "2"), mail("c", "3"), mail("a", "1")};
    assert_fine(w.d, semel_inbox_process_set(w.d->s, msgs, 4, handle_set, &w, out, &w.d->err));
    assert_int_equal(w.calls, 1);
    assert_int_equal(effects(w.d, NULL), 3);
    assert_verdict(&out[3], SEMEL_ACK, SEMEL_WHY_DUPLICATE, SEMEL_ROW_COMPLETED);
}

/* The database may return rows in any order; which message is meant is told by the id alone (P57). */
static void set_names_its_messages_in_any_order_and_each_once(void **state)
{
    struct handle *d = *state;
    for (int mode = SET_BACKWARDS; mode <= SET_REPEATS_BACKWARDS; mode++) {
        struct set_world w = {.d = d, .mode = (enum set_mode)mode};
        struct semel_msg msgs[] = {mail("b", "1"), mail("d", "2"), mail("a", "3"), mail("c", "4")};
        sql(d, "DELETE FROM semel_inbox; DELETE FROM effect");
        assert_fine(d, semel_inbox_process_set(d->s, msgs, 4, handle_set, &w, out, &d->err));
        assert_int_equal(effects(d, NULL), 4);
        if (mode == SET_BACKWARDS)
            assert_int_equal(w.calls, 1);
        else /* refused, and run again in pieces */
            assert_true(w.calls > 1);
    }
}

static void set_that_forgets_or_fails_blames_one_message(void **state)
{
    /* P57 */
    struct handle *d = *state;
    for (int mode = SET_FORGETS; mode <= SET_FAILS; mode++) {
        struct set_world w = {.d = d, .mode = (enum set_mode)mode};
        struct semel_msg msgs[] = {mail("a", "1"), mail("b", "2"), mail("c", "3")};
        sql(d, "DELETE FROM semel_inbox; DELETE FROM effect");
        assert_fine(d, semel_inbox_process_set(d->s, msgs, 3, handle_set, &w, out, &d->err));
        assert_verdict(&out[0], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
        assert_verdict(&out[1], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_DEAD);
        assert_verdict(&out[2], SEMEL_ACK, SEMEL_WHY_NEW, SEMEL_ROW_COMPLETED);
        assert_int_equal(effects(d, NULL), 2);
    }
}

static void set_needs_an_effect_in_the_database(void **state)
{
    struct set_world w = {.d = *state};
    struct semel_msg m = mail("a", "1");
    set(w.d, "{\"effect\": \"outside\"}");
    assert_refused(w.d, semel_inbox_process_set(w.d->s, &m, 1, handle_set, &w, out, &w.d->err), SEMEL_INVALID,
                   "atomic");
    assert_refused(w.d, semel_inbox_process_set(w.d->s, &m, 1, NULL, &w, out, &w.d->err), SEMEL_INVALID, "handler");
    assert_string_equal(state_of(w.d, "a"), "absent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(batch_runs_each_message_once),
        ON_BOTH(failed_message_is_kept_and_run_by_work),
        ON_OWN(world_that_fails_charges_nobody),
        ON_BOTH(order_of_a_key_survives_a_failure),
        ON_OWN(poison_fields_do_not_stall_the_batch),
        ON_OWN(wrong_calls_are_refused_and_leave_everything_later),
        ON_BOTH(process_and_work_are_refused_inside_a_transaction),
        ON_OWN(later_and_longer_message_struct_is_walked_by_its_size),
        ON_BOTH(handler_may_emit_events_which_share_its_fate),
        ON_BOTH(handler_with_an_outside_effect_may_emit_events_too),
        ON_BOTH(handler_must_not_call_back_into_the_handle),
        ON_BOTH(handler_cannot_end_the_transaction),
        ON_BOTH(set_is_one_call_for_many_messages),
        ON_OWN(set_names_its_messages_in_any_order_and_each_once),
        ON_OWN(set_that_forgets_or_fails_blames_one_message),
        ON_OWN(set_needs_an_effect_in_the_database),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
