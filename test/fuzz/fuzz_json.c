/* SPDX-License-Identifier: MIT
 *
 * fuzz_json.c: hostile documents and pointers.
 *
 * The input: one byte; a pointer, up to the first NUL or newline; the document. A first byte of
 * '0' parses undisturbed; any other makes that allocation fail (its low five bits), which must
 * never look like bad JSON.
 *
 * What must hold: the canonical form of an exact document parses, is exact and is its own
 * canonical form, which is also the short form, where there is one; without a failed allocation no
 * status is RETRY; an error text is printable.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define MAX_BYTES 65536
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_json.c:%d: does not hold: %s\n", line, condition);
    abort();
}

static bool fail_countdown(void *ctx)
{
    unsigned *left = ctx;
    return *left == 0 || --*left != 0;
}

static void check_error(semel_status status, const struct semel_error *err, bool disturbed)
{
    MUST(status == SEMEL_OK || status == SEMEL_INVALID || (disturbed && status == SEMEL_RETRY));
    if (status == SEMEL_OK)
        return;
    MUST(err->status == status);
    for (const char *p = err->text; *p != '\0'; p++)
        MUST(*p >= 0x20 && *p < 0x7F);
}

static void check_pointer(const struct semel_json *json, struct semel_str pointer, bool disturbed)
{
    struct semel_arena arena;
    struct semel_error err;
    struct semel_str text = {NULL, 0};
    enum semel_json_kind kind = SEMEL_JSON_MISSING;
    semel__arena_init(&arena, 2 * MAX_BYTES);
    semel_status status = semel__json_get(json, pointer, &arena, &kind, &text, &err);
    check_error(status, &err, disturbed);
    if (status == SEMEL_INVALID)
        MUST(!semel__json_pointer_valid(pointer));
    if (status == SEMEL_OK)
        MUST(semel__str_given(text) == (kind == SEMEL_JSON_STRING || kind == SEMEL_JSON_INTEGER));
    if (semel__str_given(text))
        MUST(semel__utf8_valid(text));
    semel__arena_done(&arena);
}

/* The canonical form of text in buf. */
static semel_status canonical(struct semel_str text, struct semel_buf *buf, bool *ret_exact, struct semel_error *err)
{
    struct semel_json *json = NULL;
    semel_status status = semel__json_parse(&json, text, 8 * MAX_BYTES, err);
    if (status == SEMEL_OK)
        status = semel__json_canonical(json, buf, ret_exact, err);
    semel__json_free(json);
    return status;
}

static void check_canonical(const struct semel_json *json, bool disturbed)
{
    struct semel_buf once, twice;
    struct semel_error err;
    bool exact = false, again = false;
    semel__buf_init(&once, 8 * MAX_BYTES);
    semel__buf_init(&twice, 8 * MAX_BYTES);
    semel_status status = semel__json_canonical(json, &once, &exact, &err);
    check_error(status, &err, disturbed);
    if (status == SEMEL_OK && exact) {
        status = canonical(semel__buf_str(&once), &twice, &again, &err);
        check_error(status, &err, disturbed);
        MUST(status != SEMEL_INVALID);
        if (status == SEMEL_OK)
            MUST(again && semel__str_eq(semel__buf_str(&once), semel__buf_str(&twice)));
    }
    semel__buf_done(&once);
    semel__buf_done(&twice);
}

/* A short form is that of the tree. */
static void check_short(struct semel_str text)
{
    char out[SEMEL_JSON_SHORT];
    struct semel_buf form;
    struct semel_error err;
    bool exact = false;
    size_t n = semel__json_short(text, out);
    if (n == 0)
        return;
    semel__buf_init(&form, 8 * MAX_BYTES);
    MUST(canonical(text, &form, &exact, &err) == SEMEL_OK && exact);
    MUST(semel__str_eq(semel__buf_str(&form), (struct semel_str){out, n}));
    semel__buf_done(&form);
}

static void check_document(struct semel_str pointer, struct semel_str text, bool disturbed)
{
    struct semel_json *json = NULL;
    struct semel_error err;
    semel_status status = semel__json_parse(&json, text, MAX_BYTES, &err);
    check_error(status, &err, disturbed);
    MUST((status == SEMEL_OK) == (json != NULL));
    if (status != SEMEL_OK)
        return;
    check_pointer(json, pointer, disturbed);
    check_canonical(json, disturbed);
    semel__json_free(json);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *p = (const char *)data + 1;
    size_t n = 0;
    while (n < size - 1 && p[n] != '\0' && p[n] != '\n')
        n++;
    struct semel_str pointer = {p, n};
    struct semel_str text = {p + n, 0};
    if (n < size - 1)
        text = (struct semel_str){p + n + 1, size - n - 2};

    check_short(text);
    unsigned left = data[0] == '0' ? 0 : data[0] & 0x1Fu;
    bool disturbed = left > 0;
    semel__alloc_set_hook(disturbed ? fail_countdown : NULL, &left);
    check_document(pointer, text, disturbed);
    semel__alloc_set_hook(NULL, NULL);
    return 0;
}
