/* SPDX-License-Identifier: MIT
 *
 * test_version.c: how far a key has come by versions, and what a database may say of it.
 */
#include "unit/unit.h"

#include "base/error.h"
#include "core/version.h"

static struct semel_policy policy_of(int64_t first)
{
    struct semel_policy policy;
    semel__policy_init(&policy, SEMEL_STR("c"));
    policy.order = SEMEL_ORDER_VERSION;
    policy.first_version = first;
    return policy;
}

static int setup(void **state)
{
    struct semel_arena *arena = semel__calloc(1, sizeof *arena);
    semel__arena_init(arena, 16 << 20);
    *state = arena;
    return 0;
}

static int teardown(void **state)
{
    semel__arena_done(*state);
    semel__free(*state);
    return 0;
}

static void assert_key(const struct semel_key *key, int64_t last, const char *skipped)
{
    struct semel_buf text;
    semel__buf_init(&text, SEMEL_SKIPPED_TEXT_MAX);
    semel__version_write(key->skipped, key->n_skipped, &text);
    assert_int_equal(key->last_version, last);
    assert_true(semel__str_eqz(semel__buf_str(&text), skipped));
    semel__buf_done(&text);
}

/* A2 P74: every order in which the versions 1 to 6 end, each with or without effect, against the table in words. */
static void only_an_effect_moves_a_key_past_a_gap(void **state)
{
    /* I12 */
    const struct semel_policy policy = policy_of(1);
    for (unsigned seed = 0; seed < 20000; seed++) {
        struct semel_key key = {.last_version = SEMEL_NONE};
        bool over[8] = {true};
        int64_t last = 0;
        unsigned random = seed * 2654435761u + 1;
        for (int i = 0; i < 8; i++) {
            random = random * 1664525u + 1013904223u;
            int64_t version = 1 + (random >> 24) % 6;
            bool effect = (random >> 16) % 3 == 0;
            if (version <= last)
                continue;
            assert_true(semel__version_move(&policy, &key, version, effect ? SEMEL_ROW_COMPLETED : SEMEL_ROW_REJECTED,
                                            false, *state));
            over[version] = true;
            if (effect)
                last = version;
            while (last < 6 && over[last + 1])
                last++;
            assert_int_equal(semel__version_last(&policy, &key), last);
            assert_int_equal(semel__version_check(&key, NULL), SEMEL_OK);
        }
        semel__arena_reset(*state);
    }
}

static void new_message_of_a_skipped_version_is_waited_for(void **state)
{
    /* I12 */
    static const int64_t skipped[] = {7, 9, 11};
    const struct semel_policy policy = policy_of(1);
    const struct semel_key before = {.last_version = 4, .skipped = skipped, .n_skipped = 3};
    static const enum semel_row_status takes[] = {SEMEL_ROW_ABSENT, SEMEL_ROW_WAITING, SEMEL_ROW_DEAD};
    static const enum semel_row_status leaves[] = {SEMEL_ROW_QUARANTINED, SEMEL_ROW_PREVENTED, SEMEL_ROW_STALE};
    for (size_t i = 0; i < 3; i++) {
        struct semel_key key = before;
        assert_true(semel__version_move(&policy, &key, 9, takes[i], true, *state)); /* ABSENT: it found no room */
        assert_key(&key, 4, "7,11");
        key = before;
        assert_true(semel__version_move(&policy, &key, 9, leaves[i], true, *state));
        assert_key(&key, 4, "7,9,11");
        key = before;
        assert_true(semel__version_move(&policy, &key, 9, SEMEL_ROW_WAITING, false, *state));
        assert_key(&key, 4, "7,9,11");
    }
    assert_key(&before, 4, "7,9,11"); /* copies share it */
}

static void full_list_takes_no_more(void **state)
{
    const struct semel_policy policy = policy_of(1);
    struct semel_key key = {.last_version = 4};
    for (int64_t i = 0; i < SEMEL_SKIPPED_MAX; i++) {
        assert_false(semel__version_full(&policy, &key, 100 + 2 * i));
        assert_true(semel__version_move(&policy, &key, 100 + 2 * i, SEMEL_ROW_REJECTED, false, *state));
    }
    assert_true(semel__version_full(&policy, &key, 101));
    assert_false(semel__version_full(&policy, &key, 100)); /* it is there */
    assert_false(semel__version_full(&policy, &key, 5));
    assert_true(semel__version_move(&policy, &key, 101, SEMEL_ROW_REJECTED, false, *state));
    assert_int_equal(key.n_skipped, SEMEL_SKIPPED_MAX);
    semel__version_applied(&policy, &key, 1000);
    assert_int_equal(key.last_version, 1000);
    assert_int_equal(key.n_skipped, SEMEL_SKIPPED_MAX - 451);
}

static void missing_versions_are_named(void **state)
{
    static const int64_t skipped[] = {6, 9};
    const struct semel_policy policy = policy_of(1), any = policy_of(SEMEL_FIRST_VERSION_ANY);
    const struct semel_key key = {.last_version = 4, .skipped = skipped, .n_skipped = 2},
                           none = {.last_version = SEMEL_NONE};
    static const struct {
        int64_t version;
        const char *text;
    } rows[] = {
        {5, NULL}, {6, "version 5"}, {7, "version 5"}, {8, "versions 5, 7"}, {12, "versions 5, 7 to 8, 10 to 11"}};
    struct semel_buf text;
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        semel__buf_init(&text, 1000);
        assert_int_equal(semel__version_missing(&policy, &key, rows[i].version, &text), rows[i].text != NULL);
        if (rows[i].text != NULL)
            assert_true(semel__str_eqz(semel__buf_str(&text), rows[i].text));
        semel__buf_done(&text);
    }
    semel__buf_init(&text, 1000);
    assert_false(semel__version_missing(&any, &none, 7, &text));
    assert_true(semel__version_missing(&policy, &none, 3, &text));
    assert_true(semel__str_eqz(semel__buf_str(&text), "versions 1 to 2"));
    semel__buf_done(&text);
}

/* Every byte from outside is hostile. */
static void damaged_lists_are_refused(void **state)
{
    /* I12 */
    static const char *const texts[] = {"",
                                        ",",
                                        "7,",
                                        ",7",
                                        "7,,9",
                                        "7 ,9",
                                        "x",
                                        "7,x",
                                        "9,7",
                                        "7,7",
                                        "4",
                                        "-1",
                                        "9223372036854775807",
                                        "99999999999999999999"};
    struct semel_error err;
    struct semel_key key = {.last_version = 4};
    for (size_t i = 0; i < COUNT(texts); i++) {
        semel_status status = semel__version_read(semel__str(texts[i]), *state, &key, &err);
        if (status == SEMEL_OK)
            status = semel__version_check(&key, &err);
        if (status != SEMEL_INVALID || err.cls != SEMEL_CLASS_BROKEN)
            fail_msg("'%s' is taken for a list", texts[i]);
    }
    assert_int_equal(semel__version_read((struct semel_str){0}, *state, &key, &err), SEMEL_OK);
    assert_key(&key, 4, "");
    assert_int_equal(semel__version_read(SEMEL_STR("5,9223372036854775806"), *state, &key, &err), SEMEL_OK);
    assert_int_equal(semel__version_check(&key, &err), SEMEL_OK);
    key = (struct semel_key){.last_version = -3};
    assert_int_equal(semel__version_check(&key, &err), SEMEL_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_an_effect_moves_a_key_past_a_gap, setup, teardown),
        cmocka_unit_test_setup_teardown(new_message_of_a_skipped_version_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(full_list_takes_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_versions_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_lists_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
