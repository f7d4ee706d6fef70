/* SPDX-License-Identifier: MIT
 *
 * test_conf_statement.c: what the sql handler says of a statement and its values, told at their places in the file.
 */
#include "unit/conf.h"

static const char *const env[] = {"S", "DROP hunter2", "V", "hunter2", NULL};

static const struct {
    const char *sql, *values;
    const char *place, *why;
} cases[] = {
    {"\"DROP TABLE x\"", "[id]", "semel.yaml:5:16:", "SELECT, INSERT, UPDATE"},
    {"\"SELECT 1; SELECT 2\"", "[id]", "semel.yaml:5:", "statement"},
    {"\"SELECT $1\"", "[id, jsno:/x]", "semel.yaml:6:18:", "is no rule"},
    {"\"SELECT $3\"", "[id]", "semel.yaml:", "$3"},
    {"\"${S}\"", "[id]", "semel.yaml:", "do not fit each other"},
    {"\"SELECT $1\"", "[\"${V}\"]", "semel.yaml:6:14:", "do not fit each other"},
};

static void a_wrong_statement_is_told_where_it_stands(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct reading reading = {.env = env};
        char file[512];
        snprintf(file, sizeof(file),
                 "store: sqlite:x.db\nroutes:\n  r:\n    from: {kafka: \"k:1\", topic: t}\n    do: {sql: %s}\n"
                 "    values: %s\n",
                 cases[i].sql, cases[i].values);
        reading_text(&reading, file);
        assert_int_equal(reading.status, SEMEL_INVALID);
        assert_int_equal(reading.mistakes.n, 1);
        if (strncmp(reading.text.p, cases[i].place, strlen(cases[i].place)) != 0 ||
            strstr(reading.text.p, cases[i].why) == NULL || strstr(reading.text.p, "hunter2") != NULL)
            fail_msg("%s\n%s", file, reading.text.p);
        reading_done(&reading);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_wrong_statement_is_told_where_it_stands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
