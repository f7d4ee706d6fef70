/* SPDX-License-Identifier: MIT
 *
 * test_destination.c: where an event goes, and where no row can send it.
 */
#include "base/error.h"
#include "core/destination.h"
#include "unit/unit.h"

static const struct semel_str list[] = {SEMEL_STR("order.events"), SEMEL_STR("refund.events"), SEMEL_STR("audit")};
static const struct semel_destination_of event = {.aggregatetype = SEMEL_STR("order"),
                                                  .aggregateid = SEMEL_STR("7"),
                                                  .type = SEMEL_STR("Placed"),
                                                  .destination = SEMEL_STR("audit")};

static semel_status make(const char *pattern, size_t n_list, const struct semel_destination_of *of, char *out,
                         struct semel_error *err)
{
    struct semel_str made = {NULL, 0};
    const semel_status status = semel__destination_make(semel__str(pattern), list, n_list, of, out, &made, err);

    assert_true(status != SEMEL_OK || (made.p == out && made.n == strlen(out)));
    return status;
}

static void names_in_braces_are_filled_in_from_the_event(void **state)
{
    static const struct semel_str all[] = {SEMEL_STR("order-7-Placed-audit")};
    struct semel_error err = {0};
    char out[SEMEL_DESTINATION_MAX + 1];
    struct semel_str made;

    (void)state;
    assert_int_equal(make("{aggregatetype}.events", COUNT(list), &event, out, &err), SEMEL_OK);
    assert_string_equal(out, "order.events");
    assert_int_equal(make("{destination}", COUNT(list), &event, out, &err), SEMEL_OK);
    assert_string_equal(out, "audit");
    assert_int_equal(semel__destination_make(SEMEL_STR("{aggregatetype}-{aggregateid}-{type}-{destination}"), all, 1,
                                             &event, out, &made, &err),
                     SEMEL_OK);
    assert_string_equal(out, "order-7-Placed-audit");
    assert_int_equal(make("plain", 0, &event, out, &err), SEMEL_OK);
    assert_string_equal(out, "plain");
}

static void row_cannot_choose_what_is_not_on_the_list(void **state)
{
    static const char *const hostile[] = {"order.events", "ORDER", "order\n", "", "..", "{type}", "refund.events,"};
    struct semel_error err = {0};
    char out[SEMEL_DESTINATION_MAX + 1] = "untouched";

    (void)state;
    for (size_t i = 0; i < COUNT(hostile); i++) {
        struct semel_destination_of of = event;
        of.aggregatetype = semel__str(hostile[i]);
        assert_int_equal(make("{aggregatetype}.events", COUNT(list), &of, out, &err), SEMEL_INVALID);
        assert_string_equal(out, "untouched");
    }
    assert_int_equal(make("{aggregatetype}", COUNT(list), &event, out, &err), SEMEL_INVALID);
    assert_string_equal(err.text, "the destination \"order\" is not on the list of the settings");
    assert_int_equal(make("{aggregatetype}", 0, &event, out, &err),
                     SEMEL_INVALID); /* a list that is empty has nothing */
    assert_int_equal(make("plain", COUNT(list), &event, out, &err), SEMEL_INVALID);
}

static void event_without_the_column_says_which_one(void **state)
{
    struct semel_destination_of of = event;
    struct semel_error err = {0};
    char out[SEMEL_DESTINATION_MAX + 1], large[SEMEL_DESTINATION_MAX + 2];

    (void)state;
    of.destination = (struct semel_str){NULL, 0};
    assert_int_equal(make("{destination}", COUNT(list), &of, out, &err), SEMEL_INVALID);
    assert_string_equal(err.text, "the event has no destination, which its destination is made of");
    memset(large, 'a', sizeof large);
    of.destination = (struct semel_str){large, sizeof large};
    assert_int_equal(make("{destination}", COUNT(list), &of, out, &err), SEMEL_INVALID);
    assert_non_null(strstr(err.text, "longer than"));
}

static void mistakes_of_a_template_are_found_before_any_event(void **state)
{
    static const struct {
        const char *pattern;
        size_t n_list;
        const char *mistake; /* a part of it; NULL: none */
    } cases[] = {
        {"order.events", 0, NULL},
        {"order.events", COUNT(list), NULL},
        {"{aggregatetype}.events", COUNT(list), NULL},
        {"", 0, "empty"},
        {"{aggregatetype}", 0, "list"},
        {"elsewhere", COUNT(list), "not on its own list"},
        {"{AggregateType}", COUNT(list), "another name"},
        {"{}", COUNT(list), "another name"},
        {"a{type", COUNT(list), "brace"},
        {"a}b", COUNT(list), "brace"},
        {"{{type}}", COUNT(list), "another name"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *mistake = semel__destination_mistake(semel__str(cases[i].pattern), list, cases[i].n_list);
        if (cases[i].mistake == NULL)
            assert_null(mistake);
        else if (mistake == NULL || strstr(mistake, cases[i].mistake) == NULL)
            fail_msg("%s: %s", cases[i].pattern, mistake != NULL ? mistake : "no mistake");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_in_braces_are_filled_in_from_the_event),
        cmocka_unit_test(row_cannot_choose_what_is_not_on_the_list),
        cmocka_unit_test(event_without_the_column_says_which_one),
        cmocka_unit_test(mistakes_of_a_template_are_found_before_any_event),
    };

    return cmocka_run_group_tests_name("destination", tests, NULL, NULL);
}
