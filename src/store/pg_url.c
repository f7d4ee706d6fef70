/* SPDX-License-Identifier: MIT
 *
 * pg_url.c: what a URL of PostgreSQL says. Our own parameters (semel_...) are taken out; the rest is libpq's, as it is.
 *
 * Both of libpq's forms are known: //user@host/database?name=value&... (the URL without its scheme) and name = 'value'
 * ... with blanks between.
 *
 * Invariants: no error text quotes the URL, which may hold a password; the copy that is kept is wiped when it is freed.
 */
#include "store/pg.h"

#define URL_MAX 4096

static const char looks_like[] = "it must look like postgres://user@host:5432/database";

static semel_status own_parameter(struct pg_store *d, struct semel_str name, struct semel_str value,
                                  struct semel_error *err)
{
    char shown[72];
    if (semel__str_eqz(name, "semel_pooler") && (semel__str_eqz(value, "0") || semel__str_eqz(value, "1"))) {
        d->pooler = value.p[0] == '1';
        return SEMEL_OK;
    }
    if (semel__str_eqz(name, "semel_pooler"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the store's URL: semel_pooler must be 0 or 1");
    semel__str_show(shown, sizeof(shown), name);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "the store's URL has a parameter %s; of its own Semel knows only semel_pooler", shown);
}

static bool is_ours(struct semel_str s)
{
    return s.n >= 6 && memcmp(s.p, "semel_", 6) == 0;
}

/* ---- //host/database?a=b&c=d --------------------------------------------------------------------- */

static bool libpq_knows(struct semel_str name)
{
    PQconninfoOption *options = PQconndefaults();
    bool known = options == NULL || semel__str_eqz(name, "ssl"); /* which is for sslmode, in a URL */
    for (const PQconninfoOption *o = options; !known && o->keyword != NULL; o++)
        known = semel__str_eqz(name, o->keyword);
    PQconninfoFree(options);
    return known;
}

/* Named by its place, because it may be a part of a password that has a `?` in it. */
static semel_status libpq_parameter(struct semel_str pair, int place, struct semel_error *err)
{
    const char *equals = memchr(pair.p, '=', pair.n);
    struct semel_str name = {pair.p, equals != NULL ? (size_t)(equals - pair.p) : pair.n};
    size_t left = equals != NULL ? pair.n - name.n - 1 : 0;
    if (equals == NULL || (left > 0 && memchr(equals + 1, '=', left) != NULL))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL: parameter %d behind the ? must be NAME=VALUE, and a = in its value %%3D; "
                           "a / or ? in a password is %%2F, %%3F",
                           place);
    if (memchr(name.p, '%', name.n) == NULL && !libpq_knows(name))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL: parameter %d behind the ? is none that libpq knows, such as sslmode, or "
                           "Semel, such as semel_pooler; a / or ? in a password is %%2F, %%3F",
                           place);
    return SEMEL_OK;
}

/* Where the parameters begin, or NULL. What stands before an `@` is the user and the password, as libpq reads it. */
static const char *question_mark(struct semel_str url)
{
    const char *p = url.p + 2, *end = url.p + url.n;
    while (p < end && *p != '@' && *p != '/')
        p++;
    if (p == end || *p != '@')
        p = url.p;
    return memchr(p, '?', (size_t)(end - p));
}

/* libpq would take a part of the password for a part of the host or for the database, and name it. */
static semel_status one_at(struct semel_str url, struct semel_error *err)
{
    const char *p = url.p + 2, *end = url.p + url.n;
    int n = 0;
    for (; p < end && *p != '/' && (n == 0 || *p != '?'); p++)
        n += *p == '@';
    for (; p < end && *p != '?'; p++)
        if (*p == '@')
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "the store's URL has an @ behind a /; a / in a password is %%2F, an @ in the name of a "
                               "database %%40");
    return n < 2 ? SEMEL_OK
                 : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                               "the store's URL has more than one @ before its host; an @ in a password is %%40");
}

static semel_status from_url(struct pg_store *d, struct semel_str url, struct semel_buf *out, struct semel_error *err)
{
    const char *mark = question_mark(url), *end = url.p + url.n;
    bool first = true;
    int place = 0;
    semel_status status = one_at(url, err);
    semel__buf_addz(out, "postgresql:");
    semel__buf_add(out, url.p, (size_t)((mark != NULL ? mark : end) - url.p));
    for (const char *p = mark != NULL ? mark + 1 : end; status == SEMEL_OK && p < end;) {
        const char *next = memchr(p, '&', (size_t)(end - p));
        struct semel_str pair = {p, (size_t)((next != NULL ? next : end) - p)};
        const char *equals = memchr(pair.p, '=', pair.n);
        p = next != NULL ? next + 1 : end;
        place++;
        if (is_ours(pair)) {
            size_t n = equals != NULL ? (size_t)(equals - pair.p) : pair.n;
            struct semel_str value = {pair.p + n + (equals != NULL), pair.n - n - (equals != NULL)};
            status = own_parameter(d, (struct semel_str){pair.p, n}, value, err);
            continue;
        }
        status = libpq_parameter(pair, place, err);
        semel__buf_add(out, first ? "?" : "&", 1);
        semel__buf_add(out, pair.p, pair.n);
        first = false;
    }
    return status;
}

/* ---- a=b c='d' ----------------------------------------------------------------------------------- */

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && blank(*p))
        p++;
    return p;
}

/* Behind a value that begins at p: quoted, or up to a blank; a backslash hides what follows it. */
static const char *skip_value(const char *p, const char *end)
{
    bool quoted = p < end && *p == '\'';
    if (quoted)
        p++;
    while (p < end && (quoted ? *p != '\'' : !blank(*p)))
        p += *p == '\\' && p + 1 < end ? 2 : 1;
    return quoted && p < end ? p + 1 : p;
}

static semel_status from_keywords(struct pg_store *d, struct semel_str text, struct semel_buf *out,
                                  struct semel_error *err)
{
    const char *end = text.p + text.n;
    for (const char *p = skip_blanks(text.p, end); p < end; p = skip_blanks(p, end)) {
        const char *start = p;
        while (p < end && *p != '=' && !blank(*p))
            p++;
        struct semel_str name = {start, (size_t)(p - start)};
        p = skip_blanks(p, end);
        if (p < end && *p == '=')
            p = skip_blanks(p + 1, end);
        const char *value = p;
        p = skip_value(p, end);
        if (is_ours(name)) {
            semel_status status = own_parameter(d, name, (struct semel_str){value, (size_t)(p - value)}, err);
            if (status != SEMEL_OK)
                return status;
            continue;
        }
        semel__buf_add(out, start, (size_t)(p - start));
        semel__buf_add(out, " ", 1);
        if (p == start)
            p++;
    }
    return SEMEL_OK;
}

/* ---- both ---------------------------------------------------------------------------------------- */

/* Does libpq understand it? Its own message may quote what it did not understand, so that is not shown. */
static semel_status understood(const char *conninfo, struct semel_error *err)
{
    char *message = NULL;
    PQconninfoOption *options = PQconninfoParse(conninfo, &message);
    bool ok = options != NULL, memory = !ok && message == NULL, ports = true;
    for (const PQconninfoOption *o = options; o != NULL && o->keyword != NULL; o++)
        if (strcmp(o->keyword, "port") == 0 && o->val != NULL)
            ports = o->val[strspn(o->val, "0123456789, ")] == '\0';
    PQconninfoFree(options);
    PQfreemem(message);
    if (memory)
        return semel__fail_memory(err);
    if (!ports) /* with a / in it, the beginning of a password looks like one */
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL: port must be a number; a / in a password is %%2F");
    return ok ? SEMEL_OK
              : semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "libpq does not understand the store's URL; %s",
                            looks_like);
}

semel_status semel__pg_url(struct pg_store *d, struct semel_str location, struct semel_error *err)
{
    struct semel_buf out;
    if (location.n > URL_MAX || memchr(location.p, '\0', location.n) != NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "the store's URL is longer than %d bytes or has a NUL in it; %s", URL_MAX, looks_like);
    semel__buf_init(&out, (size_t)2 * URL_MAX + 64);
    bool url = location.n >= 2 && memcmp(location.p, "//", 2) == 0;
    semel_status status = url ? from_url(d, location, &out, err) : from_keywords(d, location, &out, err);
    semel__buf_add(&out, "", 1);
    if (status == SEMEL_OK && out.failed)
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = understood(out.p, err);
    if (status == SEMEL_OK) {
        d->conninfo = out.p; /* freed by semel__pg_forget_url */
        return SEMEL_OK;
    }
    if (out.p != NULL)
        explicit_bzero(out.p, out.n);
    semel__buf_done(&out);
    return status;
}

/* ---- who may answer ------------------------------------------------------------------------------ */

static const char *option(const PQconninfoOption *said, const PQconninfoOption *defaults, const char *name)
{
    for (const PQconninfoOption *o = said; o != NULL && o->keyword != NULL; o++)
        if (strcmp(o->keyword, name) == 0 && o->val != NULL && o->val[0] != '\0')
            return o->val;
    return defaults != NULL ? option(defaults, NULL, name) : "";
}

/* The next of "a,b"; *list is behind it, NULL after the last. */
static struct semel_str next_of(const char **list)
{
    size_t n = *list != NULL ? strcspn(*list, ",") : 0;
    struct semel_str s = {*list, n};
    if (*list != NULL)
        *list = (*list)[n] == ',' ? *list + n + 1 : NULL;
    return s;
}

/* Sockets have a path for a host, or none at all. */
static bool all_local(const char *hosts, const char *addresses)
{
    bool local = true;
    while (hosts != NULL || addresses != NULL) {
        struct semel_str host = next_of(&hosts), address = next_of(&addresses);
        if (address.n > 0)
            local &= semel__host_is_local(address);
        else
            local &= host.n == 0 || host.p[0] == '/' || host.p[0] == '@' || semel__host_is_local(host);
    }
    return local;
}

/* *ret_asked: the URL itself has an sslmode. */
static bool exposed_by(const char *url, bool *ret_asked)
{
    struct pg_store *d = semel__calloc(1, sizeof *d);
    struct semel_error ignored;
    const char *colon = strchr(url, ':');
    bool exposed = false;
    *ret_asked = false;
    if (d != NULL && colon != NULL && semel__pg_url(d, semel__str(colon + 1), &ignored) == SEMEL_OK) {
        PQconninfoOption *said = PQconninfoParse(d->conninfo, NULL), *defaults = PQconndefaults();
        const char *mode = option(said, defaults, "sslmode");
        *ret_asked = option(said, NULL, "sslmode")[0] != '\0';
        bool checked = strcmp(mode, "verify-full") == 0 || strcmp(mode, "verify-ca") == 0;
        bool elsewhere = option(said, NULL, "service")[0] != '\0'; /* its file may say anything */
        exposed = !checked &&
                  (elsewhere || !all_local(option(said, defaults, "host"), option(said, defaults, "hostaddr")));
        PQconninfoFree(said);
        PQconninfoFree(defaults);
    }
    if (d != NULL)
        semel__pg_forget_url(d);
    semel__free(d);
    return exposed;
}

bool semel__pg_exposed(const char *url)
{
    bool asked;
    return exposed_by(url, &asked);
}

bool semel__pg_exposed_unasked(const char *url)
{
    bool asked;
    return exposed_by(url, &asked) && !asked;
}

void semel__pg_forget_url(struct pg_store *d)
{
    if (d->conninfo != NULL)
        explicit_bzero(d->conninfo, strlen(d->conninfo));
    semel__free(d->conninfo);
    d->conninfo = NULL;
}
