/* SPDX-License-Identifier: MIT
 *
 * fuzz_answer.c: hostile bytes of an upstream for the gate and the parser of answers, without a socket.
 *
 * The input: one byte, then what the upstream sends until it closes. If the byte is odd, the answer is to a HEAD.
 *
 * What must hold: a head that passes is well-formed and its framing beyond doubt; no more bytes are used than the
 * message has; a body is as long as its Content-Length; and the result is the same however the bytes were cut.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/parse.h"

#define MAX_BYTES 65536
#define HEAD_MAX 1024
#define FIELDS_MAX 8
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_answer.c:%d: does not hold: %s\n", line, condition);
    abort();
}

enum result { WAITS, REFUSED, WHOLE, TO_CLOSE };

struct run {
    struct semel_gate gate;
    struct semel_parse parse;
    struct semel_http_pair fields[FIELDS_MAX];
    struct semel_buf head, body;
    bool head_only, headed;
    int code;
    size_t used;
};

static bool take(void *ctx, struct semel_str piece)
{
    struct run *run = ctx;
    MUST(piece.n > 0);
    return semel__buf_add(&run->body, piece.p, piece.n);
}

static void check_head(const struct run *run)
{
    const struct semel_parse *parse = &run->parse;
    size_t lengths = 0, codings = 0;
    MUST(run->code >= 100 && run->code <= 999 && parse->n_fields <= FIELDS_MAX);
    for (size_t i = 0; i < parse->n_fields; i++) {
        const struct semel_http_pair *pair = &parse->fields[i];
        MUST(pair->name.n > 0);
        for (size_t k = 0; k < pair->name.n; k++)
            MUST(semel__http_tchar(pair->name.p[k]));
        for (size_t k = 0; k < pair->value.n; k++) {
            unsigned char c = (unsigned char)pair->value.p[k];
            MUST((c >= ' ' || c == '\t') && c != 0x7F);
        }
        lengths += semel__same_word(pair->name, "content-length");
        codings += semel__same_word(pair->name, "transfer-encoding");
    }
    MUST(lengths + codings <= 1);
    MUST(parse->sized == (lengths == 1) && parse->chunked == (codings == 1));
    MUST(!(parse->no_body && !parse->complete) && !(parse->to_close && (parse->sized || parse->chunked)));
}

/* One piece. */
static enum result feed(struct run *run, struct semel_str in)
{
    while (in.n > 0) {
        size_t used = 0;
        if (!run->headed) {
            enum semel_gate_verdict verdict = semel__gate_feed(&run->gate, in.p, in.n, &used);
            MUST(used <= in.n && semel__buf_add(&run->head, in.p, used));
            if (verdict == SEMEL_GATE_REFUSED)
                return REFUSED;
            if (verdict == SEMEL_GATE_END) {
                run->code = run->gate.code;
                if (semel__parse_answer(&run->parse, run->fields, FIELDS_MAX, semel__buf_str(&run->head), run->code,
                                        run->head_only) != 0)
                    return REFUSED;
                check_head(run);
                run->headed = true;
                if (!run->parse.complete)
                    semel__parse_bound(&run->parse, SIZE_MAX, take, run);
            }
        } else {
            if (semel__parse_body(&run->parse, in.p, in.n, &used) != 0)
                return REFUSED;
            MUST(used <= in.n && (used == in.n || run->parse.complete));
        }
        run->used += used;
        in = (struct semel_str){in.p + used, in.n - used};
        if (run->headed && run->parse.complete)
            return WHOLE;
    }
    return WAITS;
}

static enum result converse(struct run *run, struct semel_str in, size_t step, bool head_only)
{
    enum result result = WAITS;
    *run = (struct run){.head_only = head_only};
    semel__buf_init(&run->head, HEAD_MAX);
    semel__buf_init(&run->body, MAX_BYTES);
    semel__gate_init_answer(&run->gate, HEAD_MAX, FIELDS_MAX);
    while (in.n > 0 && result == WAITS) {
        size_t n = step < in.n ? step : in.n;
        result = feed(run, (struct semel_str){in.p, n});
        in = (struct semel_str){in.p + n, in.n - n};
    }
    if (result == WAITS && semel__parse_ended(&run->parse))
        result = TO_CLOSE;
    if (result == WHOLE && run->parse.sized && !run->parse.no_body)
        MUST(run->body.n == run->parse.length);
    if (result == WHOLE && run->parse.no_body)
        MUST(run->body.n == 0);
    return result;
}

static void run_done(struct run *run)
{
    semel__buf_done(&run->head);
    semel__buf_done(&run->body);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static struct run whole, bytes;
    if (size == 0 || size > MAX_BYTES)
        return 0;
    struct semel_str in = {(const char *)data + 1, size - 1};
    bool head_only = data[0] & 1u;
    enum result first = converse(&whole, in, SIZE_MAX, head_only), second = converse(&bytes, in, 1, head_only);
    MUST(first == second);
    if (first == WHOLE)
        MUST(whole.used == bytes.used && semel__str_eq(semel__buf_str(&whole.body), semel__buf_str(&bytes.body)));
    run_done(&whole);
    run_done(&bytes);
    return 0;
}
