/* SPDX-License-Identifier: MIT
 *
 * test_handler_sql.c: what the handler `sql` knows without a database: statements, rules, values, arrays.
 */
#include "base/error.h"
#include "handler/sql_private.h"
#include "unit/unit.h"

static struct semel_error err;

static void assert_says(const char *text, const char *about)
{
    if (strstr(err.text, text) == NULL)
        fail_msg("%s\nsays: %s\ninstead of: %s", about, err.text, text);
    assert_int_equal(err.cls, SEMEL_CLASS_BROKEN);
}

/* ---- statements ---------------------------------------------------------------------------------- */

static void assert_scans(const char *text, enum semel_sql_dialect dialect, enum sql_word word, uint64_t used)
{
    struct sql_shape shape;
    if (semel__sql_scan(semel__str(text), dialect, &shape, &err) != SEMEL_OK)
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(shape.word, word);
    assert_int_equal(shape.used, used);
    int highest = 0;
    while (highest < 64 && used >> highest != 0)
        highest++;
    assert_int_equal(shape.n_params, highest);
}

static void assert_refuses(const char *text, enum semel_sql_dialect dialect, const char *why)
{
    struct sql_shape shape;
    assert_int_equal(semel__sql_scan(semel__str(text), dialect, &shape, &err), SEMEL_INVALID);
    assert_says(why, text);
}

static void statement_begins_with_an_allowed_word(void **state)
{
    static const char *const refused[] = {
        "COMMIT",       "ROLLBACK",   "BEGIN",        "SET x = 1",        "DO $$ BEGIN END $$",
        "DROP TABLE t", "VALUES (1)", "TABLE t",      "EXPLAIN SELECT 1", "SELECTED",
        "(SELECT 1)",   "1",          "\"select\" 1", "/* SELECT */ END", "-- SELECT\nSAVEPOINT a",
        "selec",        "S ELECT",    "PRAGMA x",     "ATTACH 'x' AS y",  "REPLACE INTO t VALUES (1)"};
    (void)state; /* P58 */
    assert_scans("SELECT 1", SEMEL_SQL_POSTGRES, SQL_SELECT, 0);
    assert_scans(" \t\r\n\f\vinsert into t", SEMEL_SQL_POSTGRES, SQL_INSERT, 0);
    assert_scans("-- one\n/* two */Update t", SEMEL_SQL_POSTGRES, SQL_UPDATE, 0);
    assert_scans("/* a /* b */ COMMIT */ delete from t", SEMEL_SQL_POSTGRES, SQL_DELETE, 0);
    assert_scans("MERGE INTO t", SEMEL_SQL_POSTGRES, SQL_MERGE, 0);
    assert_scans("WITH x AS (SELECT 1) TABLE x", SEMEL_SQL_POSTGRES, SQL_WITH, 0);
    assert_scans("call p($1)", SEMEL_SQL_POSTGRES, SQL_CALL, 1);
    for (size_t i = 0; i < COUNT(refused); i++) {
        assert_refuses(refused[i], SEMEL_SQL_POSTGRES,
                       "begins with SELECT, INSERT, UPDATE, DELETE, MERGE, WITH or CALL");
        assert_refuses(refused[i], SEMEL_SQL_SQLITE, "begins with SELECT, INSERT, UPDATE, DELETE, MERGE, WITH or CALL");
    }
    assert_refuses("", SEMEL_SQL_POSTGRES, "there is none");
    assert_refuses(" -- SELECT 1", SEMEL_SQL_POSTGRES, "there is none");
}

static void place_of_a_fault_is_told_by_line_and_column(void **state)
{
    (void)state;
    assert_refuses("\n  COMMIT", SEMEL_SQL_POSTGRES, "statement, line 2, column 3:");
    assert_refuses("SELECT '\xc3\xa9\xc3\xa9'; x", SEMEL_SQL_POSTGRES, "statement, line 1, column 14:");
}

static void statement_is_exactly_one(void **state)
{
    (void)state; /* P58 */
    assert_scans("SELECT 1;", SEMEL_SQL_POSTGRES, SQL_SELECT, 0);
    assert_scans("SELECT 1 ; -- done\n /* really */ ", SEMEL_SQL_POSTGRES, SQL_SELECT, 0);
    assert_scans("SELECT ';', \";\", $$;$$, $a$;$$;$a$, E'\\';', 'a'';' /* ; /* ; */ ; */ -- ;", SEMEL_SQL_POSTGRES,
                 SQL_SELECT, 0);
    assert_scans("SELECT ';', \";\", `;`, [;], 'a'';' /* ; /* ; */ -- ;", SEMEL_SQL_SQLITE, SQL_SELECT, 0);
    assert_refuses("SELECT 1; COMMIT", SEMEL_SQL_POSTGRES, "column 11: a handler is one statement");
    assert_refuses("SELECT 1;;", SEMEL_SQL_POSTGRES, "a handler is one statement");
    assert_refuses("SELECT 'a\\'; COMMIT; --'", SEMEL_SQL_POSTGRES, "a handler is one statement");
    assert_refuses("SELECT $a$ $a$; COMMIT; --$a$", SEMEL_SQL_POSTGRES, "a handler is one statement");
    assert_refuses("SELECT 1 /* /* */ ; COMMIT */", SEMEL_SQL_SQLITE, "a handler is one statement");
    assert_refuses("SELECT se'\\'; COMMIT; --'", SEMEL_SQL_POSTGRES, "a handler is one statement"); /* no E'...' */
}

static void parameters_are_found_outside_of_literals(void **state)
{
    (void)state;
    assert_scans("SELECT $1, $2::bigint, ($3), a$4, $5||$5", SEMEL_SQL_POSTGRES, SQL_SELECT, 0x17);
    assert_scans("SELECT '$1', \"$2\", $$ $3 $$, $x$ $4 $x$ -- $5\n/* $6 /* */ $7 */, E'\\'$8', $9", SEMEL_SQL_POSTGRES,
                 SQL_SELECT, 0x100);
    assert_scans("SELECT E'a'\n  '\\'$2', $1", SEMEL_SQL_POSTGRES, SQL_SELECT, 1);
    assert_scans("SELECT U&'\\0041 $2', $1", SEMEL_SQL_POSTGRES, SQL_SELECT, 1);
    assert_scans("SELECT x[$1:$2], a ? 'b', @ -1, 'a'::text", SEMEL_SQL_POSTGRES, SQL_SELECT, 3);
    assert_scans("SELECT $64", SEMEL_SQL_POSTGRES, SQL_SELECT, UINT64_C(1) << 63);
    assert_scans("SELECT $1, [$2], `$3`, '$4', \"$5\", j->>'$.x' -- $6", SEMEL_SQL_SQLITE, SQL_SELECT, 1);
    assert_refuses("SELECT $0", SEMEL_SQL_POSTGRES, "parameters are $1 to $64");
    assert_refuses("SELECT $65", SEMEL_SQL_POSTGRES, "parameters are $1 to $64");
    assert_refuses("SELECT $99999999999999999999", SEMEL_SQL_POSTGRES, "parameters are $1 to $64");
    assert_refuses("SELECT $1x", SEMEL_SQL_POSTGRES, "followed by a letter");
    assert_refuses("SELECT $name", SEMEL_SQL_POSTGRES, "neither a parameter nor a quotation mark");
    assert_refuses("SELECT $", SEMEL_SQL_POSTGRES, "neither a parameter nor a quotation mark");
    assert_refuses("SELECT $1::bigint", SEMEL_SQL_SQLITE, "write CAST($1 AS type)");
    assert_refuses("SELECT ?", SEMEL_SQL_SQLITE, "parameters are $1, $2 ...");
    assert_refuses("SELECT ?1", SEMEL_SQL_SQLITE, "parameters are $1, $2 ...");
    assert_refuses("SELECT :a", SEMEL_SQL_SQLITE, "parameters are $1, $2 ...");
    assert_refuses("SELECT @a", SEMEL_SQL_SQLITE, "parameters are $1, $2 ...");
    assert_refuses("SELECT $a", SEMEL_SQL_SQLITE, "parameters are $1, $2 ...");
}

static void what_has_no_end_is_told_where_it_begins(void **state)
{
    static const char *const open[] = {"SELECT 'a",       "SELECT \"a",    "SELECT /* a", "SELECT $$ a",
                                       "SELECT $x$ a $$", "SELECT E'a\\'", "SELECT 'a''"};
    (void)state;
    for (size_t i = 0; i < COUNT(open); i++)
        assert_refuses(open[i], SEMEL_SQL_POSTGRES, "has no end");
    for (size_t i = 0; i < COUNT(open); i++)
        assert_refuses(open[i], SEMEL_SQL_POSTGRES, open[i][7] == 'E' ? "column 9" : "column 8");
    assert_refuses("SELECT [a", SEMEL_SQL_SQLITE, "the text that begins with [ here has no end");
}

static void statement_is_bounded_text(void **state)
{
    static char large[SEMEL_SQL_TEXT_MAX + 2];
    struct sql_shape shape;
    (void)state;
    memset(large, ' ', sizeof large);
    memcpy(large, "SELECT", 6);
    assert_int_equal(semel__sql_scan((struct semel_str){large, SEMEL_SQL_TEXT_MAX}, SEMEL_SQL_POSTGRES, &shape, &err),
                     SEMEL_OK);
    assert_int_equal(semel__sql_scan((struct semel_str){large, SEMEL_SQL_TEXT_MAX + 1}, SEMEL_SQL_POSTGRES, &shape,
                                     &err),
                     SEMEL_INVALID);
    assert_says("at most 65536", "a large one");
    assert_refuses("SELECT '\xff'", SEMEL_SQL_POSTGRES, "UTF-8");
    assert_int_equal(semel__sql_scan(SEMEL_STR("SELECT 1\0; COMMIT"), SEMEL_SQL_POSTGRES, &shape, &err), SEMEL_INVALID);
    assert_int_equal(semel__sql_scan((struct semel_str){0}, SEMEL_SQL_POSTGRES, &shape, &err), SEMEL_INVALID);
}

static void no_beginning_of_a_statement_is_read_past_its_end(void **state)
{
    static const char text[] = "WITH a AS (SELECT E'\\'x' '\n'b'') SELECT $1, $t$ ; $t$, \"q\" /* c /* d */ */ -- e\n;";
    (void)state;
    for (size_t n = 0; n <= sizeof text - 1; n++) {
        char *copy = semel__alloc(n); /* so that the sanitizer sees its end */
        struct sql_shape shape;
        memcpy(copy, text, n);
        (void)semel__sql_scan((struct semel_str){copy, n}, SEMEL_SQL_POSTGRES, &shape, &err);
        (void)semel__sql_scan((struct semel_str){copy, n}, SEMEL_SQL_SQLITE, &shape, &err);
        semel__free(copy);
    }
}

/* ---- descriptions -------------------------------------------------------------------------------- */

static semel_status check(const char *statement, enum semel_sql_mode mode, const struct semel_str *values, size_t n,
                          enum semel_sql_dialect dialect)
{
    const struct semel_sql_desc desc = {.statement = semel__str(statement),
                                        .mode = mode,
                                        .values = values,
                                        .n_values = n};
    return semel__sql_check(&desc, dialect, &err);
}

static void values_and_parameters_are_the_same_in_number(void **state)
{
    static const struct semel_str values[] = {SEMEL_STR("id"), SEMEL_STR("json:/a"), SEMEL_STR("body")};
    struct semel_str many[SEMEL_SQL_VALUES_MAX + 1];
    (void)state;
    assert_int_equal(check("SELECT $1, $2", SEMEL_SQL_EACH, values, 2, SEMEL_SQL_POSTGRES), SEMEL_OK);
    assert_int_equal(check("SELECT 1", SEMEL_SQL_EACH, NULL, 0, SEMEL_SQL_POSTGRES), SEMEL_OK);
    assert_int_equal(check("SELECT $1, $3", SEMEL_SQL_EACH, values, 2, SEMEL_SQL_POSTGRES), SEMEL_INVALID);
    assert_says("$3 is used, and there are 2 values", "too few");
    assert_int_equal(check("SELECT $1, $3", SEMEL_SQL_EACH, values, 3, SEMEL_SQL_POSTGRES), SEMEL_INVALID);
    assert_says("no $2 for the value \"json:/a\"", "one left out");
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = values[0];
    assert_int_equal(check("SELECT $1", SEMEL_SQL_EACH, many, COUNT(many), SEMEL_SQL_POSTGRES), SEMEL_INVALID);
    assert_says("values: there are 65; at most 64", "too many");
}

static void set_brings_ids_and_a_database_that_has_arrays(void **state)
{
    static const struct semel_str values[] = {SEMEL_STR("json:/id"), SEMEL_STR("id")};
    (void)state;
    assert_int_equal(check("SELECT $1", SEMEL_SQL_SET, values + 1, 1, SEMEL_SQL_POSTGRES), SEMEL_OK);
    assert_int_equal(check("SELECT $1", SEMEL_SQL_SET, values, 1, SEMEL_SQL_POSTGRES), SEMEL_INVALID);
    assert_says("`id` is not among them", "no id");
    assert_int_equal(check("SELECT $1", SEMEL_SQL_SET, values + 1, 1, SEMEL_SQL_SQLITE), SEMEL_INVALID);
    assert_says("sets need PostgreSQL", "SQLite");
    assert_int_equal(check("CALL p($1)", SEMEL_SQL_SET, values + 1, 1, SEMEL_SQL_POSTGRES), SEMEL_INVALID);
    assert_says("CALL returns no rows", "a procedure");
}

static void rule_that_is_none_is_refused_with_those_there_are(void **state)
{
    static const struct {
        const char *rule, *says;
    } wrong[] = {
        {"", "is no rule; there are id, source"},
        {"identity", "is no rule; there are id, source"},
        {"optional:", "is no rule; there are id, source"},
        {"optional:optional:id", "is no rule; there are id, source"},
        {"Id", "is no rule"},
        {"json", "is no rule"},
        {"json:a", "not a JSON pointer"},
        {"json:/~2", "not a JSON pointer"},
        {"header:", "the name must be"},
        {"optional:header:", "the name must be"},
        {"property:x", "properties are not kept"},
        {"body:x", "is no rule"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct semel_str value = semel__str(wrong[i].rule);
        assert_int_equal(check("SELECT $1", SEMEL_SQL_EACH, &value, 1, SEMEL_SQL_POSTGRES), SEMEL_INVALID);
        assert_says(wrong[i].says, wrong[i].rule);
        assert_says("values, $1: ", wrong[i].rule);
    }
}

/* ---- arrays -------------------------------------------------------------------------------------- */

static void arrays_are_written_as_the_server_reads_them(void **state)
{
    const struct sql_value values[] = {
        {SQL_TEXT, SEMEL_STR("a\"\\,{}")}, {SQL_INTEGER, SEMEL_STR("1")}, {SQL_NULL, {0}},
        {SQL_INTEGER, SEMEL_STR("-2")},    {SQL_TEXT, SEMEL_STR("")},     {SQL_INTEGER, SEMEL_STR("3")}};
    struct sql_array array = {.type = 1700, .delimiter = ','};
    (void)state;
    semel__buf_init(&array.bytes, 1024);
    assert_true(semel__sql_array(&array, values, 2, 3)); /* numeric: as text */
    assert_false(array.binary);
    assert_string_equal(array.bytes.p, "{\"a\\\"\\\\,{}\",NULL,\"\"}");
    array.type = 25;
    assert_true(semel__sql_array(&array, values, 2, 3));
    assert_true(array.binary);
    static const char texts[] = "\0\0\0\1\0\0\0\1\0\0\0\x19\0\0\0\3\0\0\0\1\0\0\0\6a\"\\,{}\xff\xff\xff\xff\0\0\0\0";
    assert_int_equal(array.bytes.n, sizeof texts - 1);
    assert_memory_equal(array.bytes.p, texts, sizeof texts - 1);
    array.type = 21;
    assert_true(semel__sql_array(&array, values + 1, 2, 3));
    static const char numbers[] = "\0\0\0\1\0\0\0\0\0\0\0\x15\0\0\0\3\0\0\0\1\0\0\0\2\0\1\0\0\0\2\xff\xfe\0\0\0\2\0\3";
    assert_int_equal(array.bytes.n, sizeof numbers - 1);
    assert_memory_equal(array.bytes.p, numbers, sizeof numbers - 1);
    array.type = 23;
    assert_true(semel__sql_array(&array, values, 2, 3)); /* no number: the server says so */
    assert_false(array.binary);
    semel__buf_done(&array.bytes);
}

static void number_outside_of_its_type_is_left_to_the_server(void **state)
{
    static const struct {
        unsigned type;
        const char *text;
        bool binary;
    } numbers[] = {
        {21, "32767", true},
        {21, "32768", false},
        {21, "-32768", true},
        {21, "-32769", false},
        {23, "2147483647", true},
        {23, "2147483648", false},
        {23, "-2147483648", true},
        {20, "9223372036854775807", true},
        {20, "9223372036854775808", false},
        {20, "-9223372036854775808", true},
        {20, "1.0", false},
    };
    struct sql_array array = {.delimiter = ','};
    (void)state;
    semel__buf_init(&array.bytes, 1024);
    for (size_t i = 0; i < COUNT(numbers); i++) {
        const struct sql_value value = {SQL_INTEGER, semel__str(numbers[i].text)};
        array.type = numbers[i].type;
        assert_true(semel__sql_array(&array, &value, 1, 1));
        assert_int_equal(array.binary, numbers[i].binary);
    }
    semel__buf_done(&array.bytes);
}

static void array_past_its_bound_is_told_and_the_next_is_whole(void **state)
{
    const struct sql_value large = {SQL_TEXT, SEMEL_STR("0123456789012345678901234567890123456789")};
    const struct sql_value small = {SQL_TEXT, SEMEL_STR("x")};
    struct sql_array array = {.type = 25, .delimiter = ','};
    (void)state;
    semel__buf_init(&array.bytes, 40);
    assert_false(semel__sql_array(&array, &large, 1, 1));
    assert_true(array.bytes.full);
    assert_true(semel__sql_array(&array, &small, 1, 1));
    assert_int_equal(array.bytes.n, 25);
    semel__buf_done(&array.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statement_begins_with_an_allowed_word),
        cmocka_unit_test(place_of_a_fault_is_told_by_line_and_column),
        cmocka_unit_test(statement_is_exactly_one),
        cmocka_unit_test(parameters_are_found_outside_of_literals),
        cmocka_unit_test(what_has_no_end_is_told_where_it_begins),
        cmocka_unit_test(statement_is_bounded_text),
        cmocka_unit_test(no_beginning_of_a_statement_is_read_past_its_end),
        cmocka_unit_test(values_and_parameters_are_the_same_in_number),
        cmocka_unit_test(set_brings_ids_and_a_database_that_has_arrays),
        cmocka_unit_test(rule_that_is_none_is_refused_with_those_there_are),
        cmocka_unit_test(arrays_are_written_as_the_server_reads_them),
        cmocka_unit_test(number_outside_of_its_type_is_left_to_the_server),
        cmocka_unit_test(array_past_its_bound_is_told_and_the_next_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
