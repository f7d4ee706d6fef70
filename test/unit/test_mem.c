/* SPDX-License-Identifier: MIT
 *
 * test_mem.c: allocation, its failure, and the arena's bound.
 */
#include "unit.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

static void a_size_that_overflows_is_refused(void **state)
{
    (void)state;
    assert_null(semel__calloc(SIZE_MAX / 2, 3));
    assert_null(semel__realloc(NULL, SIZE_MAX, 2));
    struct semel_arena arena;
    semel__arena_init(&arena, SIZE_MAX);
    assert_null(semel__arena_alloc(&arena, SIZE_MAX / 2, 3));
    assert_null(semel__arena_alloc(&arena, 1, SIZE_MAX));
    assert_null(semel__arena_alloc(&arena, 1, SIZE_MAX - 16));
    assert_int_equal(arena.used, 0);
    semel__arena_done(&arena);
}

static void an_allocation_of_nothing_is_a_pointer_of_its_own(void **state)
{
    (void)state;
    void *a = semel__alloc(0), *b = semel__calloc(0, 8), *c = semel__realloc(NULL, 0, 0);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    assert_ptr_not_equal(a, b);
    semel__free(a);
    semel__free(b);
    semel__free(c);
    semel__free(NULL);
}

static void calloc_gives_zeroes(void **state)
{
    (void)state;
    char *p = semel__calloc(100, 3);
    for (int i = 0; i < 300; i++)
        assert_int_equal(p[i], 0);
    semel__free(p);
}

static void the_hook_fails_one_allocation_and_changes_nothing(void **state)
{
    (void)state;
    char *p = semel__alloc(4);
    memcpy(p, "kept", 4);
    struct fail_nth fail;
    fail_nth_begin(&fail, 1);
    assert_null(semel__realloc(p, 100, 1));
    fail_nth_begin(&fail, 1);
    assert_null(semel__alloc(1));
    fail_nth_begin(&fail, 1);
    assert_null(semel__calloc(1, 1));
    fail_nth_begin(&fail, 1);
    assert_false(semel__alloc_permitted());
    assert_true(semel__alloc_permitted());
    assert_true(fail_nth_end(&fail));
    assert_memory_equal(p, "kept", 4);
    semel__free(p);
}

static void an_arena_gives_zeroed_and_aligned_memory_even_after_a_reset(void **state)
{
    (void)state;
    struct semel_arena arena;
    semel__arena_init(&arena, 1 << 20);
    for (int round = 0; round < 3; round++) {
        for (size_t n = 0; n < 300; n++) {
            unsigned char *p = semel__arena_alloc(&arena, n, 1);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(p[i], 0);
            memset(p, 0xAA, n);
        }
        semel__arena_reset(&arena);
        assert_non_null(arena.head);
    }
    semel__arena_done(&arena);
    assert_null(arena.head);
    assert_int_equal(arena.used, 0);
}

/* What an arena uses up for an array: with AddressSanitizer there is a gap of one element behind it. */
static size_t room_for(size_t count, size_t size)
{
    struct semel_arena arena;
    semel__arena_init(&arena, 1 << 20);
    const char *a = semel__arena_alloc(&arena, count, size), *b = semel__arena_alloc(&arena, count, size);
    const size_t room = (size_t)(b - a);
    semel__arena_done(&arena);
    return room;
}

static void an_arena_never_holds_more_than_its_bound(void **state)
{
    const size_t room = room_for(1, 48);
    (void)state;
    assert_in_range(room, 48, 96);
    for (size_t max = 0; max < 20000; max += 1237) {
        struct semel_arena arena;
        semel__arena_init(&arena, max);
        size_t given = 0;
        while (given <= max && semel__arena_alloc(&arena, 1, 48) != NULL)
            given += room;
        assert_true(given <= max);
        assert_true(arena.used <= max);
        assert_true(given + room + room * 16 > max); /* little of it is wasted */
        assert_null(semel__arena_alloc(&arena, 1, max + 1));
        semel__arena_reset(&arena);
        if (max >= room)
            assert_non_null(semel__arena_alloc(&arena, 1, 48));
        semel__arena_done(&arena);
    }
}

static void a_large_request_does_not_waste_the_block_in_use(void **state)
{
    const size_t room = room_for(16, 1);
    (void)state;
    struct semel_arena arena;
    semel__arena_init(&arena, 1 << 20);
    char *a = semel__arena_alloc(&arena, 16, 1);
    char *large = semel__arena_alloc(&arena, 100000, 1);
    char *b = semel__arena_alloc(&arena, 16, 1);
    assert_non_null(large);
    assert_ptr_equal(a + room, b);
    assert_int_equal(arena.used, 4096 + 100000 + room - 16); /* of single bytes, too */
    semel__arena_done(&arena);
}

/* One past the end of an array, and what a reset has taken back. */
static void a_sanitizer_sees_what_an_arena_has_not_given_out(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    struct semel_arena arena;
    semel__arena_init(&arena, 1 << 20);
    char *a = semel__arena_alloc(&arena, 3, 16), *b = semel__arena_alloc(&arena, 1, 5);
    assert_false(__asan_address_is_poisoned(a) || __asan_address_is_poisoned(a + 47));
    assert_true(__asan_address_is_poisoned(a + 48) && __asan_address_is_poisoned(a + 63));
    assert_false(__asan_address_is_poisoned(b) || __asan_address_is_poisoned(b + 4));
    assert_true(__asan_address_is_poisoned(b + 5));
    semel__arena_reset(&arena);
    assert_true(__asan_address_is_poisoned(a));
    assert_ptr_equal(semel__arena_alloc(&arena, 1, 1), a);
    assert_false(__asan_address_is_poisoned(a));
    semel__arena_done(&arena);
#else
    skip();
#endif
}

static void an_arena_survives_a_failed_allocation(void **state)
{
    (void)state;
    struct semel_arena arena;
    struct semel_str copy = {"untouched", 9};
    semel__arena_init(&arena, 1000);
    struct fail_nth fail;
    fail_nth_begin(&fail, 1);
    assert_null(semel__arena_alloc(&arena, 1, 10));
    fail_nth_begin(&fail, 1);
    assert_false(semel__arena_copy(&arena, SEMEL_STR("abc"), &copy));
    assert_true(fail_nth_end(&fail));
    assert_str(copy, "untouched");
    assert_int_equal(arena.used, 0);
    assert_true(semel__arena_copy(&arena, SEMEL_STR("abc"), &copy));
    assert_str(copy, "abc");
    semel__arena_done(&arena);
}

static void a_copy_keeps_every_byte_and_adds_a_nul(void **state)
{
    (void)state;
    struct semel_arena arena;
    struct semel_str copy;
    semel__arena_init(&arena, 1000);
    assert_true(semel__arena_copy(&arena, (struct semel_str){"a\0b", 3}, &copy));
    assert_int_equal(copy.n, 3);
    assert_memory_equal(copy.p, "a\0b\0", 4);
    semel__arena_done(&arena);
}

static void not_given_and_empty_stay_different_in_a_copy(void **state)
{
    (void)state;
    struct semel_arena arena;
    struct semel_str copy = SEMEL_STR("x");
    semel__arena_init(&arena, 1000);
    assert_true(semel__arena_copy(&arena, (struct semel_str){NULL, 0}, &copy));
    assert_false(semel__str_given(copy));
    assert_true(semel__arena_copy(&arena, SEMEL_STR(""), &copy));
    assert_true(semel__str_given(copy));
    assert_int_equal(copy.n, 0);
    semel__arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_that_overflows_is_refused),
        cmocka_unit_test(an_allocation_of_nothing_is_a_pointer_of_its_own),
        cmocka_unit_test(calloc_gives_zeroes),
        cmocka_unit_test(the_hook_fails_one_allocation_and_changes_nothing),
        cmocka_unit_test(an_arena_gives_zeroed_and_aligned_memory_even_after_a_reset),
        cmocka_unit_test(an_arena_never_holds_more_than_its_bound),
        cmocka_unit_test(a_large_request_does_not_waste_the_block_in_use),
        cmocka_unit_test(a_sanitizer_sees_what_an_arena_has_not_given_out),
        cmocka_unit_test(an_arena_survives_a_failed_allocation),
        cmocka_unit_test(a_copy_keeps_every_byte_and_adds_a_nul),
        cmocka_unit_test(not_given_and_empty_stay_different_in_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
