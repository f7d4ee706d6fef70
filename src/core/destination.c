/* SPDX-License-Identifier: MIT
 *
 * destination.c: where an event goes. See destination.h.
 */
#include "core/destination.h"

#include "base/error.h"

#define SHOWN 96

/* The next piece of a template: a text as it stands, or a name in braces. */
struct piece {
    struct semel_str text, name;
};

/* false: there is none left, or (with *ret_wrong) the braces are not right. */
static bool next_piece(struct semel_str *rest, struct piece *ret, bool *ret_wrong)
{
    size_t n = 0;

    *ret = (struct piece){0};
    *ret_wrong = false;
    if (rest->n == 0)
        return false;
    while (n < rest->n && rest->p[n] != '{' && rest->p[n] != '}')
        n++;
    if (n > 0) {
        ret->text = (struct semel_str){rest->p, n};
    } else {
        const char *end = memchr(rest->p, '}', rest->n);
        *ret_wrong = rest->p[0] == '}' || end == NULL;
        if (*ret_wrong)
            return false;
        n = (size_t)(end - rest->p) + 1;
        ret->name = (struct semel_str){rest->p + 1, n - 2};
    }
    *rest = (struct semel_str){rest->p + n, rest->n - n};
    return true;
}

/* NULL: nothing is called so. */
static const struct semel_str *column_of(const struct semel_destination_of *of, struct semel_str name)
{
    const struct {
        const char *name;
        const struct semel_str *value;
    } columns[] = {{"aggregatetype", &of->aggregatetype},
                   {"aggregateid", &of->aggregateid},
                   {"type", &of->type},
                   {"destination", &of->destination}};

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        if (semel__str_eqz(name, columns[i].name))
            return columns[i].value;
    return NULL;
}

static bool is_listed(const struct semel_str *list, size_t n, struct semel_str name)
{
    for (size_t i = 0; i < n; i++)
        if (semel__str_eq(list[i], name))
            return true;
    return false;
}

const char *semel__destination_mistake(struct semel_str pattern, const struct semel_str *list, size_t n)
{
    const struct semel_destination_of none = {0};
    const struct semel_str whole = pattern;
    struct piece piece;
    bool wrong, names = false;

    if (pattern.n == 0)
        return "is empty";
    while (next_piece(&pattern, &piece, &wrong)) {
        if (semel__str_given(piece.name) && column_of(&none, piece.name) == NULL)
            return "has another name in braces than {aggregatetype}, {aggregateid}, {type} and {destination}";
        names |= semel__str_given(piece.name);
    }
    if (wrong)
        return "has a brace without its counterpart";
    if (names && n == 0)
        return "takes a part of its destination from rows, so the list of what may come of it must be given";
    if (!names && n > 0 && !is_listed(list, n, whole))
        return "is not on its own list";
    return NULL;
}

static semel_status fill_in(struct semel_str pattern, const struct semel_destination_of *of, struct semel_buf *buf,
                            struct semel_error *err)
{
    struct piece piece;
    bool wrong;

    while (next_piece(&pattern, &piece, &wrong)) {
        const struct semel_str *value = semel__str_given(piece.name) ? column_of(of, piece.name) : &piece.text;
        if (value == NULL)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the destination's template is not valid");
        if (value->n == 0)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_NONE,
                               "the event has no %.*s, which its destination is made of", (int)piece.name.n,
                               piece.name.p);
        semel__buf_add(buf, value->p, value->n);
    }
    if (wrong)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the destination's template is not valid");
    if (buf->failed && !buf->full)
        return semel__fail_memory(err);
    return buf->failed ? semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_NONE, "the destination is longer than %d bytes",
                                     SEMEL_DESTINATION_MAX)
                       : SEMEL_OK;
}

semel_status semel__destination_make(struct semel_str pattern, const struct semel_str *list, size_t n,
                                     const struct semel_destination_of *of, char out[SEMEL_DESTINATION_MAX + 1],
                                     struct semel_str *ret, struct semel_error *err)
{
    struct semel_buf buf;
    struct semel_str made;
    semel_status status;
    char shown[SHOWN];

    semel__buf_init(&buf, SEMEL_DESTINATION_MAX);
    status = fill_in(pattern, of, &buf, err);
    made = semel__buf_str(&buf);
    if (status == SEMEL_OK && !is_listed(list, n, made) && (n > 0 || !semel__str_eq(made, pattern))) {
        semel__str_show(shown, sizeof shown, made);
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_NONE,
                             "the destination \"%s\" is not on the list of the settings", shown);
    }
    if (status == SEMEL_OK) {
        memcpy(out, made.p, made.n);
        out[made.n] = '\0';
        *ret = (struct semel_str){out, made.n};
    }
    semel__buf_done(&buf);
    return status;
}
