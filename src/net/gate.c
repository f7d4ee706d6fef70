/* SPDX-License-Identifier: MIT
 *
 * gate.c: the automaton of gate.h, one function a byte.
 *
 * Invariants: every state names what may come next, and whatever is not named is refused; 'seen' never passes
 * max_bytes.
 */
#include "net/gate.h"

#include <string.h>

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
};

bool semel__http_tchar(char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return true;
    return c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

void semel__gate_init(struct semel_gate *gate, size_t max_bytes, size_t max_fields)
{
    *gate = (struct semel_gate){.state = AT_START,
                                .max_bytes = max_bytes,
                                .max_fields = max_fields,
                                .version = version_prefix};
}

static enum semel_gate_verdict refuse(struct semel_gate *gate, int status, const char *reason)
{
    gate->status = status;
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
        return refuse(gate, 400, "this is not a request of HTTP");
    return go(gate, IN_METHOD);
}

static enum semel_gate_verdict in_method(struct semel_gate *gate, char c)
{
    if (c == ' ')
        return go(gate, AT_TARGET);
    if (!semel__http_tchar(c))
        return refuse(gate, 400, "the method has a character that is not allowed");
    if (gate->seen - gate->skipped > METHOD_MAX)
        return refuse(gate, 501, "the method is not known");
    return SEMEL_GATE_MORE;
}

static enum semel_gate_verdict at_target(struct semel_gate *gate, char c)
{
    if (c != '/' && c != '*')
        return refuse(gate, 400, "the target must be a path that begins with /");
    return go(gate, c == '/' ? IN_TARGET : AFTER_STAR);
}

static enum semel_gate_verdict in_target(struct semel_gate *gate, char c)
{
    if (c == ' ')
        return go(gate, IN_VERSION);
    if (c <= ' ' || c > '~' || c == '#')
        return refuse(gate, 400, "the target has a character that must be percent-encoded");
    return SEMEL_GATE_MORE;
}

static enum semel_gate_verdict in_version(struct semel_gate *gate, char c)
{
    if (c != *gate->version) {
        bool other = gate->version >= version_prefix + AT_MAJOR && c >= '0' && c <= '9';
        return refuse(gate, other ? 505 : 400,
                      other ? "the version must be HTTP/1.1 or HTTP/1.0"
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
        return refuse(gate, 400, "a header must not be folded over lines");
    if (!semel__http_tchar(c))
        return refuse(gate, 400, "a header must begin with its name");
    if (gate->fields == gate->max_fields)
        return refuse(gate, 431, "there are too many headers");
    gate->fields++;
    return go(gate, IN_NAME);
}

static enum semel_gate_verdict in_name(struct semel_gate *gate, char c)
{
    if (c == ':')
        return go(gate, IN_VALUE);
    if (!semel__http_tchar(c))
        return refuse(gate, 400, "a header's name must be letters, digits and dashes, up to its colon");
    return SEMEL_GATE_MORE;
}

static enum semel_gate_verdict in_value(struct semel_gate *gate, char c)
{
    unsigned char byte = (unsigned char)c;
    if (c == '\r')
        return go(gate, AT_LF);
    if ((byte < ' ' && c != '\t') || byte == 0x7F)
        return refuse(gate, 400, "a header's value has a control character");
    return SEMEL_GATE_MORE;
}

/* c must be `right`, and the next state follows. */
static enum semel_gate_verdict expect(struct semel_gate *gate, char c, char right, enum gate_state next)
{
    if (c != right)
        return refuse(gate, 400, "a line must end in CR LF");
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
        return c == ' ' ? go(gate, IN_VERSION) : refuse(gate, 400, "the target must be a path that begins with /");
    case IN_VERSION:
        return in_version(gate, c);
    case AT_MINOR:
        return c == '0' || c == '1' ? go(gate, AFTER_VERSION)
                                    : refuse(gate, 505, "the version must be HTTP/1.1 or HTTP/1.0");
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
    case AT_LAST_LF:
        return c == '\n' ? SEMEL_GATE_END : refuse(gate, 400, "a line must end in CR LF");
    }
    return refuse(gate, 500, "the gate is lost"); /* not reached: every state is above */
}

enum semel_gate_verdict semel__gate_feed(struct semel_gate *gate, const char *p, size_t n, size_t *ret_used)
{
    enum semel_gate_verdict verdict = SEMEL_GATE_MORE;
    size_t i = 0;
    while (i < n && verdict == SEMEL_GATE_MORE) {
        if (gate->seen == gate->max_bytes) {
            verdict = refuse(gate, 431, "the head of the request is too large");
            break;
        }
        gate->seen++;
        verdict = step(gate, p[i++]);
    }
    *ret_used = i;
    return verdict;
}
