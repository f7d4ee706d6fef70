/* SPDX-License-Identifier: MIT
 *
 * test_heads.c: which headers of an answer are stored with its key: those of spec/replay-headers.txt.
 */
#include "gateway/heads.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit/unit.h"

static bool is_stored(const char *name)
{
    struct semel_http_pair pair = {semel__str(name), SEMEL_STR("1")};
    struct semel_buf text;
    semel__buf_init(&text, 1000);
    semel__heads_write(&pair, 1, &text);
    bool stored = text.n > 2; /* [] */
    semel__buf_done(&text);
    return stored;
}

static void check(const char *name, bool stored)
{
    if (is_stored(name) != stored)
        fail_msg("%s is %s", name, stored ? "not stored" : "stored");
}

/* The name of a rule, in any case, and its neighbour. */
static void check_rule(char *name, bool stored)
{
    char more[100];
    size_t n = strlen(name);
    bool begins = name[n - 1] == '*';
    if (begins)
        name[--n] = '\0';
    check(name, stored);
    snprintf(more, sizeof more, "%smore", name);
    check(more, stored || !begins);
    for (char *p = name; *p != '\0'; p++)
        *p = (char)toupper((unsigned char)*p);
    check(name, stored);
    if (begins) {
        name[n - 1] = '\0';
        check(name, true);
    }
}

/* P52 P101 */
static void headers_are_stored_by_the_list(void **state)
{
    char path[4096], line[200], word[20], name[80];
    size_t n = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/replay-headers.txt", getenv("SEMEL_SPEC"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        assert_int_equal(sscanf(line, "%19s %79s", word, name), 2);
        check_rule(name, strcmp(word, "drop") != 0);
        n++;
    }
    fclose(file);
    assert_in_range(n, 40, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_stored_by_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
