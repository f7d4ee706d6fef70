/* SPDX-License-Identifier: MIT
 *
 * parse.c: the gate and the parser of parse.h.
 */
#include "net/parse.h"

#include <assert.h>
#include <string.h>

#include "net/conn.h"

/* ==== the gate ======================================================================================
 *
 * An automaton with one function per byte.
 *
 * Invariants: every state names what may come next, and whatever is not named is refused; 'seen' never passes
 * max_bytes.
 */

#define METHOD_MAX 20 /* longer than any that is registered */
#define AT_MAJOR 5    /* in the prefix of the version */

static const char version_prefix[] = "HTTP/1.";

enum gate_state {
    AT_START,      /* the first byte, or one CR before it */
    AT_START_LF,   /* the LF of a CRLF before the line */
    IN_METHOD,     /* at least one character is there */
    AT_TARGET,     /* its first byte */
    IN_TARGET,     /* a path */
    AFTER_STAR,    /* the blank behind "*" */
    IN_VERSION,    /* "HTTP/1." */
    AT_MINOR,      /* "0" or "1" */
    AFTER_VERSION, /* the CR of the request line */
    AT_LF,         /* the LF of any line */
    AT_FIELD,      /* a name's first byte, or the CR of the empty line */
    IN_NAME,       /* at least one character is there */
    IN_VALUE,      /* up to the CR */
    AT_LAST_LF,    /* the LF of the empty line */
    AT_CODE,       /* of an answer: the blank before it, or a digit */
    AFTER_CODE,    /* a blank, or the CR of the line */
};

bool semel__http_tchar(char c)
{
    return semel__is_letter(c) || semel__is_digit(c) || c == '-' || (c != '\0' && strchr("!#$%&'*+.^_`|~", c) != NULL);
}

void semel__gate_init(struct semel_gate *gate, size_t max_bytes, size_t max_fields)
{
    *gate = (struct semel_gate){.state = AT_START,
                                .max_bytes = max_bytes,
                                .max_fields = max_fields,
                                .version = version_prefix};
}

void semel__gate_init_answer(struct semel_gate *gate, size_t max_bytes, size_t max_fields)
{
    semel__gate_init(gate, max_bytes, max_fields);
    gate->answer = true;
    gate->state = IN_VERSION;
}

static enum semel_gate_verdict gate_refuse(struct semel_gate *gate, int status, const char *reason)
{
    gate->status = gate->answer ? 502 : status;
    gate->reason = reason;
    return SEMEL_GATE_REFUSED;
}

static enum semel_gate_verdict go(struct semel_gate *gate, enum gate_state state)
{
    gate->state = (int)state;
    return SEMEL_GATE_MORE;
}

static enum semel_gate_verdict at_start(struct semel_gate *gate, char c)
{
    if (c == '\r' && gate->skipped == 0)
        return go(gate, AT_START_LF);
    if (!semel__http_tchar(c))
        return gate_refuse(gate, 400, "this is not a request of HTTP");
    return go(gate, IN_METHOD);
}

static enum semel_gate_verdict in_method(struct semel_gate *gate, char c)
{
    if (c == ' ')
        return go(gate, AT_TARGET);
    if (!semel__http_tchar(c))
        return gate_refuse(gate, 400, "the method has a character that is not allowed");
    if (gate->seen - gate->skipped > METHOD_MAX)
        return gate_refuse(gate, 501, "the method is not known");
    return SEMEL_GATE_MORE;
}

static enum semel_gate_verdict at_target(struct semel_gate *gate, char c)
{
    if (c != '/' && c != '*')
        return gate_refuse(gate, 400, "the target must be a path that begins with /");
    return go(gate, c == '/' ? IN_TARGET : AFTER_STAR);
}

static bool of_target(char c)
{
    return c > ' ' && c <= '~' && c != '#';
}

static enum semel_gate_verdict in_target(struct semel_gate *gate, char c)
{
    if (c == ' ')
        return go(gate, IN_VERSION);
    if (!of_target(c))
        return gate_refuse(gate, 400, "the target has a character that must be percent-encoded");
    return SEMEL_GATE_MORE;
}

static enum semel_gate_verdict in_version(struct semel_gate *gate, char c)
{
    if (c != *gate->version) {
        bool other = gate->version >= version_prefix + AT_MAJOR && c >= '0' && c <= '9';
        return gate_refuse(gate, other ? 505 : 400,
                           other          ? "the version must be HTTP/1.1 or HTTP/1.0"
                           : gate->answer ? "this is not an answer of HTTP"
                                          : "the request line must end in a blank and HTTP/1.1");
    }
    gate->version++;
    return *gate->version == '\0' ? go(gate, AT_MINOR) : SEMEL_GATE_MORE;
}

static enum semel_gate_verdict at_field(struct semel_gate *gate, char c)
{
    if (c == '\r')
        return go(gate, AT_LAST_LF);
    if (c == ' ' || c == '\t')
        return gate_refuse(gate, 400, "a header must not be folded over lines");
    if (!semel__http_tchar(c))
        return gate_refuse(gate, 400, "a header must begin with its name");
    if (gate->fields == gate->max_fields)
        return gate_refuse(gate, 431, "there are too many headers");
    gate->fields++;
    return go(gate, IN_NAME);
}

static enum semel_gate_verdict in_name(struct semel_gate *gate, char c)
{
    if (c == ':')
        return go(gate, IN_VALUE);
    if (!semel__http_tchar(c))
        return gate_refuse(gate, 400, "a header's name must be letters, digits and dashes, up to its colon");
    return SEMEL_GATE_MORE;
}

static bool of_value(char c)
{
    return ((unsigned char)c >= ' ' && c != 0x7F) || c == '\t';
}

static enum semel_gate_verdict in_value(struct semel_gate *gate, char c)
{
    if (c == '\r')
        return go(gate, AT_LF);
    if (!of_value(c))
        return gate_refuse(gate, 400, "a header's value has a control character");
    return SEMEL_GATE_MORE;
}

/* The code has three digits, and the first is not 0. */
static enum semel_gate_verdict at_code(struct semel_gate *gate, char c)
{
    if (gate->seen == sizeof("HTTP/1.1")) /* behind the version */
        return c == ' ' ? SEMEL_GATE_MORE : gate_refuse(gate, 502, "a blank must follow the version");
    if (!semel__is_digit(c) || (gate->code == 0 && c == '0'))
        return gate_refuse(gate, 502, "the status must be a number of three digits");
    gate->code = gate->code * 10 + (c - '0');
    return gate->code >= 100 ? go(gate, AFTER_CODE) : SEMEL_GATE_MORE;
}

static enum semel_gate_verdict after_code(struct semel_gate *gate, char c)
{
    if (c == '\r')
        return go(gate, AT_LF);
    return c == ' ' ? go(gate, IN_VALUE) /* the reason has the form of a value */
                    : gate_refuse(gate, 502, "the status must be a number of three digits");
}

/* Accepts only `right`, and continues with the state `next`. */
static enum semel_gate_verdict expect(struct semel_gate *gate, char c, char right, enum gate_state next)
{
    if (c != right)
        return gate_refuse(gate, 400, "a line must end in CR LF");
    return go(gate, next);
}

static enum semel_gate_verdict step(struct semel_gate *gate, char c)
{
    switch ((enum gate_state)gate->state) {
    case AT_START:
        return at_start(gate, c);
    case AT_START_LF:
        gate->skipped = 2;
        return expect(gate, c, '\n', AT_START);
    case IN_METHOD:
        return in_method(gate, c);
    case AT_TARGET:
        return at_target(gate, c);
    case IN_TARGET:
        return in_target(gate, c);
    case AFTER_STAR:
        return c == ' ' ? go(gate, IN_VERSION) : gate_refuse(gate, 400, "the target must be a path that begins with /");
    case IN_VERSION:
        return in_version(gate, c);
    case AT_MINOR:
        return c == '0' || c == '1' ? go(gate, gate->answer ? AT_CODE : AFTER_VERSION)
                                    : gate_refuse(gate, 505, "the version must be HTTP/1.1 or HTTP/1.0");
    case AFTER_VERSION:
        return expect(gate, c, '\r', AT_LF);
    case AT_LF:
        return expect(gate, c, '\n', AT_FIELD);
    case AT_FIELD:
        return at_field(gate, c);
    case IN_NAME:
        return in_name(gate, c);
    case IN_VALUE:
        return in_value(gate, c);
    case AT_CODE:
        return at_code(gate, c);
    case AFTER_CODE:
        return after_code(gate, c);
    case AT_LAST_LF:
        return c == '\n' ? SEMEL_GATE_END : gate_refuse(gate, 400, "a line must end in CR LF");
    }
    return gate_refuse(gate, 500, "internal error"); /* not reached: every state is above */
}

/* How many of the next bytes leave the state as it is: most of a head. */
static size_t same_state(const struct semel_gate *gate, const char *p, size_t n)
{
    size_t i = 0;
    if (gate->state == IN_VALUE)
        while (i < n && of_value(p[i]))
            i++;
    else if (gate->state == IN_NAME)
        while (i < n && semel__http_tchar(p[i]))
            i++;
    else if (gate->state == IN_TARGET)
        while (i < n && of_target(p[i]))
            i++;
    return i;
}

enum semel_gate_verdict semel__gate_feed(struct semel_gate *gate, const char *p, size_t n, size_t *ret_used)
{
    enum semel_gate_verdict verdict = SEMEL_GATE_MORE;
    size_t i = 0;
    while (i < n && verdict == SEMEL_GATE_MORE) {
        size_t left = gate->max_bytes - gate->seen;
        size_t same = same_state(gate, p + i, n - i < left ? n - i : left);
        gate->seen += same;
        i += same;
        if (i == n)
            break;
        if (gate->seen == gate->max_bytes) {
            verdict = gate_refuse(gate, 431,
                                  gate->answer ? "the head of the answer is too large"
                                               : "the head of the request is too large");
            break;
        }
        gate->seen++;
        verdict = step(gate, p[i++]);
    }
    *ret_used = i;
    return verdict;
}

/* ==== the parser ====================================================================================
 *
 * Llhttp's callbacks, and what is asked of a head beyond its syntax.
 *
 * llhttp must be compiled strict (LLHTTP_STRICT_MODE): loose, it takes any two bytes behind a chunk
 * for its CR LF. Even strict it accepts a bare LF as the end of a chunked body, "gzip, chunked", and
 * a size of a thousand zeros; these are refused here.
 *
 * Invariants: llhttp sees the head in one piece, so every span is whole; a callback that refuses
 * leaves the status and stops the parser.
 */

#define LENGTH_DIGITS 18 /* more are refused: no body is that long */

/* One text for all of these: which of them llhttp notices first depends on how the bytes were split. */
static const char bad_chunks[] =
    "chunks must be a size in hexadecimal, CR LF, the bytes and CR LF, the last one empty; "
    "without extensions and trailers";

static int refuse(struct semel_parse *parse, int status, const char *reason)
{
    if (parse->status == 0) {
        parse->status = status;
        parse->reason = reason;
    }
    return -1;
}

static int on_url(llhttp_t *llhttp, const char *p, size_t n)
{
    struct semel_parse *parse = llhttp->data;
    parse->target = (struct semel_str){p, n};
    return 0;
}

static int on_field(llhttp_t *llhttp, const char *p, size_t n)
{
    struct semel_parse *parse = llhttp->data;
    if (parse->headed)
        return refuse(parse, 400, bad_chunks);
    if (parse->n_fields == parse->max_fields)
        return refuse(parse, 431, "there are too many headers");
    parse->fields[parse->n_fields++] = (struct semel_http_pair){{p, n}, {"", 0}};
    return 0;
}

static int on_value(llhttp_t *llhttp, const char *p, size_t n)
{
    struct semel_parse *parse = llhttp->data;
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    if (parse->n_fields > 0 && n > 0)
        parse->fields[parse->n_fields - 1].value = (struct semel_str){p, n};
    return 0;
}

/* An Upgrade is ignored, as RFC 9110 allows: what follows is this message's body. */
static int on_head(llhttp_t *llhttp)
{
    struct semel_parse *parse = llhttp->data;
    parse->headed = true;
    parse->keep_alive = llhttp_should_keep_alive(llhttp) != 0;
    llhttp->upgrade = 0;
    return parse->no_body; /* 1: llhttp expects no body */
}

static int on_body(llhttp_t *llhttp, const char *p, size_t n)
{
    struct semel_parse *parse = llhttp->data;
    if (n > parse->body_left)
        return refuse(parse, 413, "the body is too large");
    parse->body_left -= n;
    if (!parse->sink(parse->sink_ctx, (struct semel_str){p, n}))
        return refuse(parse, 503, "there is no memory for the body");
    return 0;
}

static int on_chunk(llhttp_t *llhttp)
{
    struct semel_parse *parse = llhttp->data;
    if (llhttp->content_length > parse->body_left)
        return refuse(parse, 413, "the body is too large");
    return 0;
}

static int on_extension(llhttp_t *llhttp, const char *p, size_t n)
{
    (void)p;
    (void)n;
    return refuse(llhttp->data, 400, bad_chunks);
}

static int on_complete(llhttp_t *llhttp)
{
    struct semel_parse *parse = llhttp->data;
    parse->complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t callbacks = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_head,
    .on_body = on_body,
    .on_chunk_header = on_chunk,
    .on_chunk_extension_name = on_extension,
    .on_message_complete = on_complete,
};

static bool method_of(const llhttp_t *llhttp, enum semel_http_method *ret)
{
    const char *name = llhttp_method_name((llhttp_method_t)llhttp->method);
    for (unsigned i = 0; i < SEMEL_HTTP_METHODS; i++)
        if (strcmp(name, semel__http_method_name((enum semel_http_method)i)) == 0) {
            *ret = (enum semel_http_method)i;
            return true;
        }
    return false;
}

/* The value of the only header of that name, or {NULL, 0}; *ret_count is their number. */
static struct semel_str only(const struct semel_parse *parse, const char *name, size_t *ret_count)
{
    struct semel_str value = {NULL, 0};
    *ret_count = 0;
    for (size_t i = 0; i < parse->n_fields; i++)
        if (semel__same_word(parse->fields[i].name, name)) {
            value = parse->fields[i].value;
            ++*ret_count;
        }
    return value;
}

static int check_length(struct semel_parse *parse, struct semel_str value)
{
    for (size_t i = 0; i < value.n; i++)
        if (value.p[i] < '0' || value.p[i] > '9')
            return refuse(parse, 400, "Content-Length must be digits");
    if (value.n == 0 || value.n > LENGTH_DIGITS)
        return refuse(parse, value.n == 0 ? 400 : 413, "Content-Length is not a length that we accept");
    int64_t length = 0;
    semel__str_int64(value, &length);
    if ((uint64_t)length != parse->llhttp.content_length)
        return refuse(parse, 400, "the length of the body is in doubt");
    parse->length = (size_t)length;
    return 0;
}

/* Checks the framing of the body: there must be no doubt about it. */
static int check_framing(struct semel_parse *parse)
{
    size_t lengths, codings;
    struct semel_str length = only(parse, "content-length", &lengths);
    struct semel_str coding = only(parse, "transfer-encoding", &codings);
    if (lengths > 1 || codings > 1)
        return refuse(parse, 400, "Content-Length and Transfer-Encoding must not be repeated");
    if (lengths > 0 && codings > 0)
        return refuse(parse, 400, "Content-Length and Transfer-Encoding exclude each other");
    if (codings > 0) {
        if (!semel__same_word(coding, "chunked"))
            return refuse(parse, 400, "the only transfer coding is chunked");
        if (parse->http_1_0)
            return refuse(parse, 400, "HTTP/1.0 has no transfer codings");
        parse->chunked = true;
    }
    parse->sized = lengths > 0;
    return lengths > 0 ? check_length(parse, length) : 0;
}

static int check_expect(struct semel_parse *parse)
{
    size_t n;
    struct semel_str expect = only(parse, "expect", &n);
    if (n == 0 || parse->http_1_0)
        return 0;
    if (n > 1 || !semel__same_word(expect, "100-continue"))
        return refuse(parse, 417, "the only expectation is 100-continue");
    parse->expects = true;
    return 0;
}

static int syntax_fault(struct semel_parse *parse, llhttp_errno_t error)
{
    if (parse->status == 0 && error == HPE_INVALID_METHOD)
        refuse(parse, 501, "the method is not known");
    if (parse->status == 0)
        refuse(parse, 400,
               parse->chunked  ? bad_chunks
               : parse->answer ? "the answer is not well-formed, or the length of its body is in doubt"
                               : "the request is not well-formed, or the length of its body is in doubt");
    return parse->status;
}

int semel__parse_head(struct semel_parse *parse, struct semel_http_exchange *x, struct semel_str head,
                      size_t max_fields)
{
    *parse = (struct semel_parse){.x = x, .max_fields = max_fields};
    parse->fields = semel__arena_alloc(&x->arena, max_fields, sizeof(*parse->fields));
    if (parse->fields == NULL) {
        refuse(parse, 503, "there is no memory for the request");
        return parse->status;
    }
    llhttp_init(&parse->llhttp, HTTP_REQUEST, &callbacks);
    parse->llhttp.data = parse;
    llhttp_errno_t error = llhttp_execute(&parse->llhttp, head.p, head.n);
    bool paused = error == HPE_PAUSED && parse->complete;
    parse->http_1_0 = parse->llhttp.http_minor == 0;
    if ((error != HPE_OK && !paused) || !parse->headed) {
        if (parse->headed)
            check_framing(parse); /* its error is clearer than llhttp's */
        return syntax_fault(parse, error);
    }
    if (paused && llhttp_get_error_pos(&parse->llhttp) != head.p + head.n)
        return syntax_fault(parse, HPE_INTERNAL); /* gate and parser disagree on where the head ends */

    if (!method_of(&parse->llhttp, &x->req.method))
        refuse(parse, 501, "the method is not known");
    else if (check_framing(parse) == 0)
        check_expect(parse);
    if (parse->status == 0 && parse->complete != (!parse->chunked && parse->length == 0))
        refuse(parse, 400, "the length of the body is in doubt");
    x->req.target = parse->target;
    x->req.headers = parse->fields;
    x->req.n_headers = parse->n_fields;
    return parse->status;
}

/* Checks what the head says about its body against the status. */
static int check_answer(struct semel_parse *parse, int code)
{
    if ((code < 200 || code == 204) && (parse->chunked || parse->length > 0))
        return refuse(parse, 502, "an answer with this status has no body, but announces one");
    parse->to_close = !parse->no_body && !parse->chunked && !parse->sized;
    bool at_once = parse->no_body || (!parse->chunked && !parse->to_close && parse->length == 0);
    if (parse->complete != at_once)
        return refuse(parse, 502, "the length of the body is in doubt");
    return 0;
}

int semel__parse_answer(struct semel_parse *parse, struct semel_http_pair *fields, size_t max_fields,
                        struct semel_str head, int code, bool head_only)
{
    *parse = (struct semel_parse){.fields = fields, .max_fields = max_fields, .answer = true};
    parse->no_body = head_only || code < 200 || code == 204 || code == 304;
    llhttp_init(&parse->llhttp, HTTP_RESPONSE, &callbacks);
    parse->llhttp.data = parse;
    llhttp_errno_t error = llhttp_execute(&parse->llhttp, head.p, head.n);
    bool paused = error == HPE_PAUSED && parse->complete;
    parse->http_1_0 = parse->llhttp.http_minor == 0;
    if ((error != HPE_OK && !paused) || !parse->headed || parse->llhttp.status_code != code ||
        (paused && llhttp_get_error_pos(&parse->llhttp) != head.p + head.n)) {
        if (parse->headed)
            check_framing(parse); /* its error is clearer than llhttp's */
        syntax_fault(parse, error);
    } else if (check_framing(parse) == 0) {
        check_answer(parse, code);
    }
    return parse->status != 0 ? 502 : 0;
}

bool semel__parse_ended(struct semel_parse *parse)
{
    return parse->headed && parse->to_close && !parse->complete && parse->status == 0;
}

/* A chunk of one byte takes six bytes; a size may have some more zeros. */
void semel__parse_bound(struct semel_parse *parse, size_t body_max, bool (*sink)(void *ctx, struct semel_str piece),
                        void *sink_ctx)
{
    parse->sink = sink;
    parse->sink_ctx = sink_ctx;
    parse->body_left = body_max;
    if (__builtin_mul_overflow(body_max, (size_t)8, &parse->wire_left) ||
        __builtin_add_overflow(parse->wire_left, (size_t)1024, &parse->wire_left))
        parse->wire_left = SIZE_MAX;
}

static int check_end(struct semel_parse *parse, const char *p, size_t used)
{
    char before = used >= 2 ? p[used - 2] : parse->last;
    if (parse->chunked && (used == 0 || p[used - 1] != '\n' || before != '\r'))
        refuse(parse, 400, bad_chunks);
    return parse->status;
}

/* Shows llhttp only as many bytes of a chunked body as are allowed, however many there are. */
int semel__parse_body(struct semel_parse *parse, const char *p, size_t n, size_t *ret_used)
{
    assert(!parse->complete);
    bool over = parse->chunked && n > parse->wire_left;
    *ret_used = n = over ? parse->wire_left : n;
    llhttp_errno_t error = n > 0 ? llhttp_execute(&parse->llhttp, p, n) : HPE_OK;
    if (error == HPE_PAUSED && parse->complete) {
        *ret_used = (size_t)(llhttp_get_error_pos(&parse->llhttp) - p);
        return check_end(parse, p, *ret_used);
    }
    if (error != HPE_OK)
        return syntax_fault(parse, error);
    if (over)
        refuse(parse, 400, "the chunks of the body are too small for their number");
    if (parse->chunked && n > 0) {
        parse->wire_left -= n;
        parse->last = p[n - 1];
    }
    return parse->status;
}
