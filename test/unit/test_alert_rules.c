/* SPDX-License-Identifier: MIT
 *
 * test_alert_rules.c: every metric and label that alerts/semel.rules.yml asks for is one that a process tells.
 *
 * RULES is the file. Of PromQL only this is read: a name that begins as ours do, and the labels in the braces after it.
 */
#include "unit.h"

#include <ctype.h>
#include <stdlib.h>

#include "admin/stats_table.h"
#include "base/error.h"
#include "core/relay.h"

static struct semel_str rules;

static int read_rules(void **state)
{
    (void)state;
    FILE *file = fopen(RULES, "r");
    assert_non_null(file);
    static char text[1 << 18];
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    assert_true(n > 0 && n < sizeof(text) - 1);
    fclose(file);
    rules = (struct semel_str){text, n};
    return 0;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == ':';
}

/* The next metric of ours from p on; {NULL, 0}: there is none. */
static struct semel_str next_metric(const char *p)
{
    for (; *p != '\0'; p++) {
        bool begins = p == rules.p || !is_word(p[-1]);
        if (!begins || (strncmp(p, "semel_", 6) != 0 && strncmp(p, "process_", 8) != 0))
            continue;
        size_t n = 0;
        while (is_word(p[n]))
            n++;
        return (struct semel_str){p, n};
    }
    return (struct semel_str){0};
}

/* A histogram is asked for by its parts. */
static const struct semel_metric_spec *family_of(struct semel_str name)
{
    static const char *const parts[] = {"", "_bucket", "_sum", "_count"};
    for (size_t i = 0; i < SEMEL_FAMILY_COUNT; i++)
        for (size_t j = 0; j < COUNT(parts); j++) {
            char full[128];
            snprintf(full, sizeof(full), "%s%s", semel__families[i].name, parts[j]);
            if ((j > 0) == (semel__families[i].kind == SEMEL_HISTOGRAM) && semel__str_eqz(name, full))
                return &semel__families[i];
        }
    return NULL;
}

static bool has_label(const struct semel_metric_spec *family, struct semel_str label)
{
    for (size_t i = 0; i < family->n_labels; i++)
        if (semel__str_eqz(label, family->labels[i]))
            return true;
    return false;
}

static void every_metric_of_the_rules_exists(void **state) /* M */
{
    (void)state;
    size_t seen = 0;
    for (struct semel_str name = next_metric(rules.p); name.p != NULL; name = next_metric(name.p + name.n), seen++)
        if (family_of(name) == NULL)
            fail_msg("no family is called %.*s", (int)name.n, name.p);
    assert_true(seen >= 18);
}

static void every_label_in_braces_exists(void **state)
{
    (void)state;
    size_t seen = 0;
    for (struct semel_str name = next_metric(rules.p); name.p != NULL; name = next_metric(name.p + name.n)) {
        const char *p = name.p + name.n;
        if (*p != '{')
            continue;
        do {
            struct semel_str label = {++p, 0};
            while (is_word(p[label.n]))
                label.n++;
            if (!has_label(family_of(name), label))
                fail_msg("%.*s has no label %.*s", (int)name.n, name.p, (int)label.n, label.p);
            seen++;
            p = strchr(p, '"') + 1; /* over the value */
            p = strchr(p, '"') + 1;
        } while (*p == ',');
        assert_int_equal(*p, '}');
    }
    assert_true(seen > 0);
}

/* How many values the rules ask of this label; one that no row and no breaker ever has would never match. */
static size_t asked_for(const char *label, bool (*known)(struct semel_str))
{
    size_t seen = 0;
    for (const char *p = strstr(rules.p, label); p != NULL; p = strstr(p, label)) {
        for (p = strchr(p, '"') + 1; p[-1] != '"' || p[0] != '}';) {
            struct semel_str value = {p, strcspn(p, "|\"")};
            if (!known(value))
                fail_msg("%s: nothing is called %.*s", label, (int)value.n, value.p);
            p += value.n + 1;
            seen++;
        }
    }
    return seen;
}

static bool is_status(struct semel_str value)
{
    enum semel_row_status found;
    for (unsigned s = SEMEL_EVENT_CREATED; s <= SEMEL_EVENT_PUBLISHED; s++) /* of events */
        if (semel__str_eqz(value, semel__event_status_name((enum semel_event_status)s)))
            return true;
    return semel__row_status_parse(value, &found);
}

static bool is_breaker_state(struct semel_str value)
{
    return semel__str_eqz(value, "closed") || semel__str_eqz(value, "open") || semel__str_eqz(value, "probing");
}

static void every_status_that_is_asked_for_exists(void **state)
{
    (void)state;
    assert_true(asked_for("{status=", is_status) >= 6);
    assert_true(asked_for("{state=", is_breaker_state) >= 2);
}

static void every_reason_that_is_asked_for_exists(void **state)
{
    (void)state;
    size_t seen = 0;
    for (const char *p = strstr(rules.p, "{why="); p != NULL; p = strstr(p, "{why=")) {
        for (p = strchr(p, '"') + 1; p[-1] != '"' || p[0] != '}';) {
            struct semel_str word = {p, strcspn(p, "|\"")};
            enum semel_why found;
            if (!semel__why_parse(word, &found))
                fail_msg("no reason is called %.*s", (int)word.n, word.p);
            p += word.n + 1;
            seen++;
        }
    }
    assert_true(seen >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_metric_of_the_rules_exists),
        cmocka_unit_test(every_label_in_braces_exists),
        cmocka_unit_test(every_status_that_is_asked_for_exists),
        cmocka_unit_test(every_reason_that_is_asked_for_exists),
    };
    return cmocka_run_group_tests(tests, read_rules, NULL);
}
