/* SPDX-License-Identifier: MIT
 *
 * test_fingerprint.c: requests and their fingerprints, as spec/fingerprints.json has them.
 */
#include <stdlib.h>

#include "base/digest.h"
#include "base/json.h"
#include "core/fingerprint.h"
#include "unit.h"

#define LISTED 16

static struct semel_str text_of(struct semel_arena *arena, struct semel_str object, const char *name)
{
    struct semel_str raw, text;
    bool sound;
    if (!semel__json_member(object, name, &raw))
        return (struct semel_str){NULL, 0};
    assert_true(semel__json_decode(raw, arena, &text, &sound));
    return text;
}

static size_t texts_of(struct semel_arena *arena, struct semel_str list, struct semel_str *out)
{
    struct semel_str raw;
    size_t from = 0, n = 0;
    bool sound;
    while (semel__json_next(list, &from, NULL, &raw)) {
        assert_true(n < LISTED);
        assert_true(semel__json_decode(raw, arena, &out[n++], &sound));
    }
    return n;
}

static size_t list_of(struct semel_arena *arena, struct semel_str object, const char *name, struct semel_str *out)
{
    struct semel_str list;
    return semel__json_member(object, name, &list) ? texts_of(arena, list, out) : 0;
}

static struct semel_str bytes_of(struct semel_arena *arena, struct semel_str hex)
{
    char *bytes = semel__arena_alloc(arena, hex.n / 2 + 1, 1);
    for (size_t i = 0; i < hex.n / 2; i++)
        bytes[i] = (char)(semel__hex_value(hex.p[2 * i]) * 16 + semel__hex_value(hex.p[2 * i + 1]));
    return (struct semel_str){bytes, hex.n / 2};
}

struct vector {
    struct semel_str name, fingerprint;
    struct semel_request request;
    struct semel_request_rule rule;
    struct semel_pair headers[LISTED];
    struct semel_str listed[LISTED], ignore[LISTED];
};

static void read_vector(struct semel_arena *arena, struct semel_str object, struct vector *ret)
{
    struct semel_str headers, pair;
    size_t from = 0;
    ret->name = text_of(arena, object, "name");
    ret->fingerprint = text_of(arena, object, "fingerprint");
    ret->request = (struct semel_request){.method = text_of(arena, object, "method"),
                                          .path = text_of(arena, object, "path"),
                                          .query = text_of(arena, object, "query"),
                                          .body = text_of(arena, object, "body"),
                                          .headers = ret->headers};
    struct semel_str hex = text_of(arena, object, "body_hex");
    if (semel__str_given(hex))
        ret->request.body = bytes_of(arena, hex);
    assert_true(semel__json_member(object, "headers", &headers));
    while (semel__json_next(headers, &from, NULL, &pair)) {
        struct semel_str both[LISTED];
        assert_int_equal(texts_of(arena, pair, both), 2);
        ret->headers[ret->request.n_headers++] = (struct semel_pair){both[0], both[1]};
    }
    ret->rule = (struct semel_request_rule){.headers = ret->listed, .ignore = ret->ignore};
    ret->rule.n_headers = list_of(arena, object, "listed", ret->listed);
    ret->rule.n_ignore = list_of(arena, object, "ignore", ret->ignore);
}

static semel_status print(const struct vector *vector, char ret[67])
{
    struct semel_fp fp;
    unsigned char bytes[1 + SEMEL_FP_MAX];
    semel_status status = semel__request_fingerprint(&vector->request, &vector->rule, &fp, NULL);
    if (status == SEMEL_OK)
        semel__hex(bytes, semel__fp_encode(&fp, bytes), ret);
    return status;
}

/* Each allocation fails in turn: no memory, and never another fingerprint. */
static void starve(const struct vector *vector)
{
    char got[67];
    struct fail_nth fail;
    unsigned at = 0;
    do {
        fail_nth_begin(&fail, ++at);
        semel_status status = print(vector, got);
        if (!fail_nth_end(&fail))
            assert_int_equal(status, SEMEL_OK);
        else if (status == SEMEL_OK)
            assert_str(vector->fingerprint, got);
        else
            assert_int_equal(status, SEMEL_RETRY);
    } while (fail.seen >= at);
}

/* A5 P56 P97 */
static void fingerprints_are_those_of_the_vectors(void **state)
{
    static char text[100000];
    char path[4096];
    struct semel_str all = {text, 0}, object;
    size_t from = 0, n = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/fingerprints.json", getenv("SEMEL_SPEC"));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    all.n = fread(text, 1, sizeof text, file);
    fclose(file);
    assert_in_range(all.n, 1, sizeof text - 1);
    for (; semel__json_next(all, &from, NULL, &object); n++) {
        struct semel_arena arena;
        struct vector vector = {0};
        char got[67];
        semel__arena_init(&arena, 1000000);
        read_vector(&arena, object, &vector);
        assert_int_equal(print(&vector, got), SEMEL_OK);
        if (!semel__str_eqz(vector.fingerprint, got))
            fail_msg("%.*s: %s", (int)vector.name.n, vector.name.p, got);
        starve(&vector);
        semel__arena_done(&arena);
    }
    assert_in_range(n, 50, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fingerprints_are_those_of_the_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
