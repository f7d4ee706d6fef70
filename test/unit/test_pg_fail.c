/* SPDX-License-Identifier: MIT
 *
 * test_pg_fail.c: what SQLSTATEs mean, what their texts show, and what a URL says. The first and the last need no
 * server.
 */
#include "unit/test_pg.h"

/* ---- the table ----------------------------------------------------------------------------------- */

static const struct {
    const char *code;
    semel_status status;
    enum semel_class cls;
} expected[] = {
    {"08006", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, {"53100", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
    {"53300", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, {"57014", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
    {"57P01", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, {"58030", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
    {"25006", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, {"25P03", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},
    {"40003", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, {"40001", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT},
    {"40P01", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT},   {"55P03", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT},
    {"22001", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, {"22P02", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},
    {"23502", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, {"23505", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},
    {"23503", SEMEL_INVALID, SEMEL_CLASS_TRANSIENT}, {"23514", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},
    {"P0001", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, {"25P02", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},
    {"2D000", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, {"42P01", SEMEL_INVALID, SEMEL_CLASS_BROKEN},
    {"42501", SEMEL_INVALID, SEMEL_CLASS_BROKEN},    {"3F000", SEMEL_INVALID, SEMEL_CLASS_BROKEN},
    {"XX000", SEMEL_INVALID, SEMEL_CLASS_BROKEN},    {"55000", SEMEL_INVALID, SEMEL_CLASS_BROKEN},
};

static void sqlstates_say_whom_to_blame(void **state)
{
    (void)state; /* P63 */
    for (size_t i = 0; i < COUNT(expected); i++) {
        enum semel_class cls = SEMEL_CLASS_NONE;
        semel_status status = semel__pg_meaning(expected[i].code, &cls);
        if (status != expected[i].status || cls != expected[i].cls)
            fail_msg("%s is %s %s", expected[i].code, semel__status_name(status), semel__class_name(cls));
    }
}

static void unknown_sqlstate_is_retried_and_counted(void **state)
{
    static const char *const codes[] = {"U0001", "ZZ999", "01000", "99999"};
    (void)state;
    for (size_t i = 0; i < COUNT(codes); i++) {
        enum semel_class cls = SEMEL_CLASS_NONE;
        assert_int_equal(semel__pg_meaning(codes[i], &cls), SEMEL_INVALID);
        assert_int_equal(cls, SEMEL_CLASS_TRANSIENT);
    }
}

static void sqlstate_is_a_number_only_when_it_is_one(void **state)
{
    (void)state;
    assert_int_equal(semel__pg_code("40P01"), SEMEL_SQLSTATE('4', '0', 'P', '0', '1'));
    assert_int_not_equal(semel__pg_code("40P01"), semel__pg_code("40001"));
    assert_int_equal(semel__pg_code(NULL), 0);
    assert_int_equal(semel__pg_code("40P0"), 0);
    assert_int_equal(semel__pg_code("40p01"), 0);
    assert_int_equal(semel__pg_code("40P011"), 0);
}

/* ---- texts --------------------------------------------------------------------------------------- */

static const char *text_of(struct world *w, const char *statement)
{
    begin(w);
    assert_false(handler(w, statement));
    semel_store_rollback(w->store);
    return w->err.text;
}

static void error_texts_never_show_values(void **state)
{
    static const char *const statements[] = {"SELECT 'card 4111'::integer",
                                             "SELECT 'card \" 4111 \"'::integer",
                                             "SELECT '4111-99-99'::date",
                                             "SELECT '{\"card\": 4111'::json",
                                             "INSERT INTO paid VALUES (4111)",
                                             "INSERT INTO paid VALUES (7, 'card 4111')",
                                             "SELECT set_config('a.b', 'x', true), '4111 is no number'::numeric"};
    struct world *w = *state; /* P71 */
    sql("CREATE TABLE paid (id integer PRIMARY KEY, note varchar(3)); INSERT INTO paid VALUES (4111)");
    for (size_t i = 0; i < COUNT(statements); i++) {
        const char *text = text_of(w, statements[i]);
        if (strstr(text, "4111") != NULL)
            fail_msg("%s", text);
        assert_int_equal(w->err.cls, SEMEL_CLASS_PERMANENT);
    }
}

static void error_text_has_sqlstate_message_and_constraint(void **state)
{
    struct world *w = *state;
    sql("CREATE TABLE paid (id integer CONSTRAINT only_once PRIMARY KEY); INSERT INTO paid VALUES (1)");
    assert_string_equal(text_of(w, "INSERT INTO paid VALUES (1)"),
                        "handler: 23505: duplicate key value violates unique constraint \"only_once\"");
    assert_int_equal(w->err.code, SEMEL_SQLSTATE('2', '3', '5', '0', '5'));
    assert_string_equal(text_of(w, "DO $$ BEGIN RAISE 'no' USING CONSTRAINT = 'business_rule'; END $$"),
                        "handler: P0001: no, constraint business_rule");
    assert_string_equal(text_of(w, "DO $$ BEGIN RAISE E'a\\x1b[31mb\\nc'; END $$"), "handler: P0001: a?[31mb?c");
}

/* ---- URLs ---------------------------------------------------------------------------------------- */

static void own_parameters_are_taken_out_of_the_url(void **state)
{
    static const struct {
        const char *location, *conninfo;
        bool pooler;
    } cases[] = {
        {"//u@h/d", "postgresql://u@h/d", false},
        {"//u@h/d?semel_pooler=1", "postgresql://u@h/d", true},
        {"//u@h/d?sslmode=disable&semel_pooler=1&connect_timeout=3",
         "postgresql://u@h/d?sslmode=disable&connect_timeout=3", true},
        {"//u@h/d?semel_pooler=0&sslmode=disable", "postgresql://u@h/d?sslmode=disable", false},
        {"host=h dbname=d", "host=h dbname=d ", false},
        {"host=h semel_pooler=1 dbname='a \\' semel_pooler=2'", "host=h dbname='a \\' semel_pooler=2' ", true},
        {"", "", false},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct pg_store d = {0};
        struct semel_error err;
        assert_int_equal(semel__pg_url(&d, semel__str(cases[i].location), &err), SEMEL_OK);
        assert_string_equal(d.conninfo, cases[i].conninfo);
        assert_int_equal(d.pooler, cases[i].pooler);
        semel__pg_forget_url(&d);
    }
}

static void bad_url_is_refused_without_showing_the_password(void **state)
{
    static const char *const locations[] = {"//u:secret@h/d?semel_pooler=2", "//u:secret@h/d?semel_speed=1",
                                            "//u:secret@h/d?no_such=secret", "host=h password=secret dbname",
                                            "//u:%zzsecret@h/d"};
    (void)state;
    for (size_t i = 0; i < COUNT(locations); i++) {
        struct pg_store d = {0};
        struct semel_error err;
        assert_int_equal(semel__pg_url(&d, semel__str(locations[i]), &err), SEMEL_INVALID);
        assert_null(d.conninfo);
        assert_null(strstr(err.text, "secret"));
        assert_non_null(strstr(err.text, "the store's URL"));
    }
}

static void url_without_memory_is_no_wrong_url(void **state)
{
    struct fail_nth fail;
    struct semel_error err;
    (void)state;
    for (unsigned at = 1;; at++) {
        struct pg_store d = {0};
        fail_nth_begin(&fail, at);
        semel_status status = semel__pg_url(&d, SEMEL_STR("//u@h/d?semel_pooler=1"), &err);
        bool reached = fail_nth_end(&fail);
        semel__pg_forget_url(&d);
        if (!reached)
            break;
        assert_int_equal(status, SEMEL_RETRY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sqlstates_say_whom_to_blame),
        cmocka_unit_test(unknown_sqlstate_is_retried_and_counted),
        cmocka_unit_test(sqlstate_is_a_number_only_when_it_is_one),
        cmocka_unit_test(own_parameters_are_taken_out_of_the_url),
        cmocka_unit_test(bad_url_is_refused_without_showing_the_password),
        cmocka_unit_test(url_without_memory_is_no_wrong_url),
        cmocka_unit_test_setup_teardown(error_texts_never_show_values, opened, world_teardown),
        cmocka_unit_test_setup_teardown(error_text_has_sqlstate_message_and_constraint, opened, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
