/* SPDX-License-Identifier: MIT
 *
 * value.c: one value of the file into the field that the table names.
 *
 * Each type has one function; what is wrong is reported as "PATH is VALUE; it must be RIGHT", and RIGHT is the text
 * that the documentation has for the type as well. A number and a flag stand without quotes, a text may look like
 * either.
 *
 * Invariants: a field is written only with a value that was checked. Nothing that came from outside the file, and no
 * secret, is part of any text.
 */
#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "conf/private.h"
#include "core/consumer.h"
#include "net/address.h"

/* ==== texts with a form of their own ================================================================
 *
 * URLs, and names of headers, variables and properties. Only the form is looked at; whether anything answers
 * there is for others to find out. What is refused is what could not be meant, or what would reach another place than
 * it seems to (a blank, a control character, a redirecting name). A function that refuses sets *ret_why to what would
 * be right.
 */

/* ---- URLs ---------------------------------------------------------------------------------------- */

static bool scheme_known(struct semel_str text, const char *const *schemes, size_t *ret_n)
{
    const char *colon = text.n > 0 ? memchr(text.p, ':', text.n) : NULL;
    if (colon == NULL)
        return false;
    *ret_n = (size_t)(colon - text.p);
    for (size_t i = 0; schemes[i] != NULL; i++)
        if (semel__str_eqz((struct semel_str){text.p, *ret_n}, schemes[i]))
            return true;
    return false;
}

/* `SCHEME:SOMETHING`; a scheme of the list that ends with :// in the settings' help has a host behind it. */
static bool url_ok(struct semel_str text, const char *const *schemes, const char **ret_why)
{
    size_t scheme = 0;
    *ret_why = "it begins with none of them";
    if (!scheme_known(text, schemes, &scheme))
        return false;
    struct semel_str rest = {text.p + scheme + 1, text.n - scheme - 1};
    *ret_why = "nothing stands behind its scheme";
    if (rest.n == 0)
        return false;
    bool slashes = rest.n >= 2 && rest.p[0] == '/' && rest.p[1] == '/';
    bool file = semel__str_eqz((struct semel_str){text.p, scheme}, "sqlite");
    bool database = scheme >= 8 && memcmp(text.p, "postgres", 8) == 0; /* also host=... dbname=... */
    *ret_why = "a host must stand behind ://";
    if (!file && !database && (!slashes || rest.n == 2 || strchr("/?#@:", rest.p[2]) != NULL))
        return false;
    *ret_why = "it has a blank in it";
    return file || (database && !slashes) || memchr(rest.p, ' ', rest.n) == NULL;
}

/* ---- names --------------------------------------------------------------------------------------- */

static bool header_name_ok(struct semel_str name, const char **ret_why)
{
    static const char *const ours[] = {
        "idempotency-key",   "semel-consumer", "semel-message-id", "semel-attempt", "content-length",
        "transfer-encoding", "host",           "connection",       "expect",        "te",
        "trailer",           "upgrade",        "keep-alive",       "traceparent",   "proxy-connection"};
    *ret_why = "letters, digits and -";
    if (name.n == 0 || name.n > 100)
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (!semel__is_letter(name.p[i]) && !semel__is_digit(name.p[i]) &&
            (name.p[i] == '\0' || strchr("-_.", name.p[i]) == NULL))
            return false;
    *ret_why = "another one: Semel sets this header itself";
    for (size_t i = 0; i < CONF_COUNT(ours); i++)
        if (semel__same_word(name, ours[i]))
            return false;
    return true;
}

static bool variable_name_ok(struct semel_str name, const char **ret_why)
{
    *ret_why = "letters, digits and _, and begin with no digit";
    if (name.n == 0 || name.n > 100 || semel__is_digit(name.p[0]))
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (!semel__is_letter(name.p[i]) && !semel__is_digit(name.p[i]) && name.p[i] != '_')
            return false;
    *ret_why = "another one: Semel sets this variable itself";
    return name.n < 6 || memcmp(name.p, "SEMEL_", 6) != 0;
}

static bool listed_name_ok(const struct semel_setting_names *names, struct semel_str name, const char **ret_why)
{
    const char *const *all;
    size_t n = names->all(&all);
    *ret_why = "one of those that the driver lets through; docs/settings.md lists them";
    for (size_t i = 0; i < n; i++)
        if (semel__str_eqz(name, all[i]))
            return true;
    return false;
}

/* ==== values ===================================================================================== */

#define SHOWN 41 /* bytes of a value in a mistake, with its NUL */
#define RIGHT 256

/* ---- for people ---------------------------------------------------------------------------------- */

static bool is_empty(const struct conf_node *node)
{
    return node->shape == CONF_SCALAR && node->plain && !node->outside &&
           (node->text.n == 0 || semel__str_eqz(node->text, "null") || semel__str_eqz(node->text, "~"));
}

void semel__conf_show(const struct conf_node *node, char *out, size_t size)
{
    char text[SHOWN];
    if (node->shape != CONF_SCALAR) {
        snprintf(out, size, "%s %s", node->first != NULL ? "a" : "an empty",
                 node->shape == CONF_LIST ? "list" : "mapping");
        return;
    }
    if (is_empty(node)) {
        snprintf(out, size, "empty");
        return;
    }
    semel__str_show(text, sizeof(text), node->said);
    const char *quote = node->plain ? "" : "\"", *more = node->said.n >= sizeof(text) ? "..." : "";
    snprintf(out, size, "%s%s%s%s%s", quote, text, more, quote, node->outside ? ", with what that holds now" : "");
}

void semel__conf_must(struct conf_reader *r, const struct conf_node *node, const char *right)
{
    char is[SHOWN + 40];
    semel__conf_show(node, is, sizeof(is));
    semel__conf_wrong(r, semel__conf_place(r, node), "%s is %s; it must be %s", r->path, is, right);
}

static void words_text(const char *const *words, const char *before, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "%s", before);
    for (size_t i = 0; words[i] != NULL && n < size; i++) {
        const char *between = i == 0 ? "" : words[i + 1] != NULL ? ", " : " or ";
        n += (size_t)snprintf(out + n, size - n, "%s%s", between, words[i]);
    }
}

static void time_text(const struct semel_setting_spec *s, char *out, size_t size)
{
    char low[32], high[32];
    semel__duration_format(s->low, low, sizeof(low));
    semel__duration_format(s->high, high, sizeof(high));
    snprintf(out, size, "a duration such as 90s, %s to %s%s", low, high,
             (s->flags & SEMEL_SETTING_FOREVER) != 0 ? ", or forever" : "");
}

static size_t text_low(const struct semel_setting_spec *s)
{
    return s->low > 0 ? (size_t)s->low : 1;
}

static size_t text_high(const struct semel_setting_spec *s)
{
    return s->high > 0 ? (size_t)s->high : CONF_TEXT_MAX;
}

static void url_text(const struct semel_setting_spec *s, char *out, size_t size)
{
    if (strcmp(s->words[0], "sqlite") == 0)
        snprintf(out, size, "a store, such as sqlite:FILE or postgres://USER@HOST:5432/DATABASE");
    else
        words_text(s->words, "a URL, of the scheme ", out, size);
}

void semel__conf_type(const struct semel_setting_spec *s, char *out, size_t size)
{
    static const char *const fixed[] = {
        [SEMEL_SETTING_FLAG] = "true or false",
        [SEMEL_SETTING_RULE] = "a rule: header:NAME, property:NAME, json:/POINTER, position or digest",
        [SEMEL_SETTING_RULES] = "a rule or a list of at most 4: header:NAME, property:NAME, json:/POINTER",
        [SEMEL_SETTING_TEXTS] = "text, or a list of texts",
        [SEMEL_SETTING_PAIRS] = "a mapping of at most 64 names to texts",
        [SEMEL_SETTING_ADDRESS] = "an address: localhost:PORT, A.B.C.D:PORT, [IPV6]:PORT or unix:/PATH",
        [SEMEL_SETTING_FILE] = "the name of a file that can be read",
        [SEMEL_SETTING_PROGRAM] = "a program and its arguments, as a list of texts",
        [SEMEL_SETTING_GROUP] = "a mapping",
        [SEMEL_SETTING_ONE_OF] = "a mapping",
        [SEMEL_SETTING_SOURCE] = "a mapping",
        [SEMEL_SETTING_SINK] = "a mapping",
        [SEMEL_SETTING_ROUTES] = "a mapping of names to routes",
        [SEMEL_SETTING_OUTBOXES] = "a mapping of names to outboxes",
        [SEMEL_SETTING_GATEWAYS] = "a mapping of names to gateways",
        [SEMEL_SETTING_GROUPS] = "a list of mappings",
    };
    if (s->kind == SEMEL_SETTING_WORD)
        words_text(s->words, "one of ", out, size);
    else if (s->kind == SEMEL_SETTING_NUMBER)
        snprintf(out, size, "a whole number, %lld to %lld", (long long)s->low, (long long)s->high);
    else if (s->kind == SEMEL_SETTING_TIME)
        time_text(s, out, size);
    else if (s->kind == SEMEL_SETTING_URL)
        url_text(s, out, size);
    else if (s->kind == SEMEL_SETTING_TEXT)
        snprintf(out, size, "text of %zu to %zu bytes%s", text_low(s), text_high(s),
                 (s->flags & SEMEL_SETTING_LINES) != 0 ? "" : " in one line");
    else if ((s->flags & SEMEL_SETTING_SWITCH) != 0 && s->kind == SEMEL_SETTING_GROUP)
        snprintf(out, size, "a mapping, or true or false");
    else
        snprintf(out, size, "%s", fixed[s->kind] != NULL ? fixed[s->kind] : "?");
}

static bool wrong_type(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *node)
{
    char right[RIGHT];
    semel__conf_type(s, right, sizeof(right));
    semel__conf_must(r, node, right);
    return false;
}

/* ---- texts --------------------------------------------------------------------------------------- */

static bool printable(struct semel_str text, bool lines)
{
    for (size_t i = 0; i < text.n;) {
        uint32_t c = 0;
        size_t n = semel__utf8_next((struct semel_str){text.p + i, text.n - i}, &c);
        if (n == 0 || (!semel__utf8_shown(c) && !(lines && (c == '\n' || c == '\t' || c == '\r'))))
            return false;
        i += n;
    }
    return true;
}

static bool visible(struct semel_str text)
{
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] <= ' ' || text.p[i] > '~')
            return false;
    return true;
}

/* A secret stands in the environment or in a file of its own, never in the settings. */
static bool secret_outside(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *node)
{
    bool whole = (s->flags & SEMEL_SETTING_SECRET) != 0 && (s->flags & SEMEL_SETTING_LITERAL) == 0;
    bool url = s->kind == SEMEL_SETTING_URL && semel__conf_password(node->text);
    if (node->outside || (!whole && !url))
        return true;
    bool twin = (s->flags & SEMEL_SETTING_SECRET) != 0;
    semel__conf_wrong(r, semel__conf_place(r, node),
                      "%s %s, which must not stand in the file; write ${NAME} for a variable of the environment%s%s%s",
                      r->path, whole ? "is a secret" : "has a password in it", twin ? ", or set " : "",
                      twin ? s->name : "", twin ? "_file" : "");
    return false;
}

static bool check_text(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *node)
{
    bool lines = (s->flags & SEMEL_SETTING_LINES) != 0;
    if (node->shape != CONF_SCALAR || is_empty(node))
        return wrong_type(r, s, node);
    if (!secret_outside(r, s, node))
        return false;
    if (node->text.n < text_low(s) || node->text.n > text_high(s)) {
        semel__conf_wrong(r, semel__conf_place(r, node), "%s has %zu bytes; it must have %zu to %zu", r->path,
                          node->text.n, text_low(s), text_high(s));
        return false;
    }
    if ((s->flags & SEMEL_SETTING_VISIBLE) != 0 && !visible(node->text)) {
        semel__conf_wrong(r, semel__conf_place(r, node), "%s must have letters, digits and signs of ASCII only",
                          r->path);
        return false;
    }
    if (printable(node->text, lines))
        return true;
    semel__conf_wrong(r, semel__conf_place(r, node), "%s has a control or invisible character%s in it; take it out",
                      r->path, lines ? "" : " or a line break");
    return false;
}

static void put_text(const struct semel_setting_spec *s, void *at, struct semel_str text)
{
    if (s->size == sizeof text.p)
        memcpy(at, &text.p, sizeof text.p);
    else
        memcpy(at, &text, sizeof text);
}

static bool parse_text(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    if (!check_text(r, s, node))
        return false;
    put_text(s, at, node->text);
    return true;
}

static bool parse_url(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    const char *why;
    char right[RIGHT], type[RIGHT - 64];
    if (!check_text(r, s, node))
        return false;
    if (url_ok(node->text, s->words, &why)) {
        put_text(s, at, node->text);
        return true;
    }
    semel__conf_type(s, type, sizeof(type));
    snprintf(right, sizeof(right), "%s; %s", type, why);
    semel__conf_must(r, node, right);
    return false;
}

static bool parse_address(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct semel_setting_address *ret = at;
    struct semel_address address;
    char where[SEMEL_ADDRESS_TEXT];
    if (!check_text(r, s, node))
        return false;
    if (semel__address_parse(&address, node->text.p, NULL) != SEMEL_OK)
        return wrong_type(r, s, node);
    semel__address_show(&address.storage, true, where);
    *ret = (struct semel_setting_address){.text = node->text, .where = node->text, .local = address.loopback};
    if (address.storage.ss_family != AF_UNIX)
        r->failed |= !semel__arena_copy(&r->owned->arena, semel__str(where), &ret->where);
    return !r->failed;
}

/* ---- numbers and words --------------------------------------------------------------------------- */

static void put_number(const struct semel_setting_spec *s, void *at, int64_t value)
{
    const int narrow = (int)value;
    const bool flag = value != 0;
    if (s->size == sizeof(flag))
        memcpy(at, &flag, sizeof(flag));
    else if (s->size == sizeof(narrow))
        memcpy(at, &narrow, sizeof(narrow));
    else
        memcpy(at, &value, sizeof(value));
}

static bool parse_number(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    int64_t value;
    bool scalar = node->shape == CONF_SCALAR;
    bool ok = scalar && (s->kind == SEMEL_SETTING_TIME ? semel__duration_parse(node->text, &value)
                                                       : node->plain && semel__str_int64(node->text, &value));
    if (scalar && (s->flags & SEMEL_SETTING_FOREVER) != 0 && semel__str_eqz(node->text, "forever")) {
        put_number(s, at, SEMEL_NONE);
        return true;
    }
    if (!ok || value < s->low || value > s->high)
        return wrong_type(r, s, node);
    put_number(s, at, value);
    return true;
}

static bool parse_flag(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    bool yes = semel__str_eqz(node->text, "true"), no = semel__str_eqz(node->text, "false");
    if (node->shape != CONF_SCALAR || !node->plain || (!yes && !no))
        return wrong_type(r, s, node);
    put_number(s, at, yes != ((s->flags & SEMEL_SETTING_NOT) != 0));
    return true;
}

static bool parse_word(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    char right[RIGHT], more[RIGHT + 48];
    size_t n = 0;
    for (; s->words[n] != NULL; n++)
        if (node->shape == CONF_SCALAR && semel__str_eqz(node->text, s->words[n])) {
            put_number(s, at, (int64_t)n);
            return true;
        }
    const char *near = node->shape == CONF_SCALAR && !node->outside ? semel__nearest(node->text.p, s->words, n) : NULL;
    semel__conf_type(s, right, sizeof(right));
    snprintf(more, sizeof(more), "%s%s%s%s", right, near != NULL ? "; did you mean " : "", near != NULL ? near : "",
             near != NULL ? "?" : "");
    semel__conf_must(r, node, more);
    return false;
}

/* ---- rules --------------------------------------------------------------------------------------- */

static bool parse_rule(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct semel_error err;
    if (node->shape != CONF_SCALAR || is_empty(node) || node->text.n == 0)
        return wrong_type(r, s, node);
    if (semel__rule_parse(node->text, at, &err) == SEMEL_OK)
        return true;
    if (node->outside)
        return wrong_type(r, s, node);
    semel__conf_wrong(r, semel__conf_place(r, node), "%s: %s", r->path, err.text);
    return false;
}

static bool parse_rules(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct semel_rules *rules = at;
    struct conf_node *each = node->shape == CONF_LIST ? node->first : node;
    bool ok = true;
    if (node->shape == CONF_MAPPING || (node->shape == CONF_LIST && node->first == NULL))
        return wrong_type(r, s, node);
    for (; each != NULL; each = node->shape == CONF_LIST ? each->next : NULL) {
        if (rules->n_business == SEMEL_BUSINESS_MAX)
            return wrong_type(r, s, node);
        ok = !each->bad && parse_rule(r, s, each, &rules->business[rules->n_business++]) && ok;
    }
    return ok;
}

/* ---- lists --------------------------------------------------------------------------------------- */

static bool parse_texts(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct semel_setting_list *list = at;
    struct conf_node *each = node->shape == CONF_LIST ? node->first : node;
    struct semel_str *texts = semel__arena_alloc(&r->owned->arena, SEMEL_SETTING_LIST_MAX, sizeof(*texts));
    size_t n = 0;
    bool ok = true;
    r->failed |= texts == NULL;
    if (texts == NULL || node->shape == CONF_MAPPING || (node->shape == CONF_LIST && each == NULL))
        return wrong_type(r, s, node);
    for (; each != NULL; each = node->shape == CONF_LIST ? each->next : NULL) {
        if (n == SEMEL_SETTING_LIST_MAX)
            return wrong_type(r, s, node);
        ok = !each->bad && check_text(r, s, each) && ok;
        texts[n++] = each->text;
    }
    *list = (struct semel_setting_list){texts, n};
    return ok;
}

/* A value from the environment or a file is not quoted. */
static bool listed_value_ok(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *each,
                            const char *name)
{
    struct semel_error why;
    if (s->names->takes(each->key.p, each->text.p, &why) == SEMEL_OK)
        return true;
    semel__conf_wrong(r, semel__conf_place(r, each), "%s: %s does not take this value for \"%s\"%s%s", r->path,
                      s->names->whose, name, each->outside ? "" : ": ", each->outside ? "" : why.text);
    return false;
}

static bool pair_ok(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *map,
                    const struct conf_node *each)
{
    const char *why = "";
    char name[SHOWN];
    semel__str_show(name, sizeof(name), each->key);
    for (const struct conf_node *before = map->first; before != each; before = before->next)
        if (semel__str_eq(before->key, each->key)) {
            semel__conf_wrong(r, each->key_place, "%s: \"%s\" is given twice; remove one", r->path, name);
            return false;
        }
    bool ok = (s->flags & SEMEL_SETTING_ENV) != 0 ? variable_name_ok(each->key, &why)
              : s->names != NULL                  ? listed_name_ok(s->names, each->key, &why)
                                                  : header_name_ok(each->key, &why);
    if (!ok) {
        semel__conf_wrong(r, each->key_place, "%s: \"%s\" cannot be a name here; it must be %s", r->path, name, why);
        return false;
    }
    return !each->bad && check_text(r, s, each) && (s->names == NULL || listed_value_ok(r, s, each, name));
}

static bool parse_pairs(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct semel_pair *pairs = semel__arena_alloc(&r->owned->arena, SEMEL_SETTING_LIST_MAX, sizeof(*pairs));
    size_t n = 0;
    bool ok = true;
    r->failed |= pairs == NULL;
    if (pairs == NULL || node->shape != CONF_MAPPING)
        return wrong_type(r, s, node);
    for (struct conf_node *each = node->first; each != NULL; each = each->next) {
        if (n == SEMEL_SETTING_LIST_MAX)
            return wrong_type(r, s, node);
        ok = pair_ok(r, s, node, each) && ok;
        pairs[n++] = (struct semel_pair){each->key, each->text};
    }
    *(struct semel_setting_pairs *)at = (struct semel_setting_pairs){pairs, n};
    return ok;
}

/* ---- files --------------------------------------------------------------------------------------- */

static bool file_ok(struct conf_reader *r, const struct conf_node *node, const char *path, int mode)
{
    struct stat st;
    const char *why = NULL;
    if (stat(path, &st) != 0 || access(path, mode) != 0)
        why = strerror(errno); /* NOLINT(concurrency-mt-unsafe): settings are read before there are threads */
    else if (!S_ISREG(st.st_mode))
        why = "it is not a file";
    if (why == NULL)
        return true;
    char is[SHOWN + 40];
    semel__conf_show(node, is, sizeof(is));
    semel__conf_wrong(r, semel__conf_place(r, node), "%s is %s, which cannot be %s: %s", r->path, is,
                      mode == X_OK ? "run" : "read", why);
    return false;
}

static bool parse_file(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct semel_str path;
    if (!check_text(r, s, node) || !semel__conf_resolve(r, node->text, &path) || !file_ok(r, node, path.p, R_OK))
        return false;
    put_text(s, at, path);
    return true;
}

/* Without a slash it is looked for where a program of a scrubbed environment would be. */
static bool find_program(struct conf_reader *r, const struct conf_node *node, struct semel_str *ret)
{
    static const char *const folders[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
                                          "/usr/bin",        "/sbin",          "/bin"};
    struct semel_str name = node->text;
    if (memchr(name.p, '/', name.n) != NULL)
        return semel__conf_resolve(r, name, ret) && file_ok(r, node, ret->p, X_OK);
    for (size_t i = 0; i < CONF_COUNT(folders); i++) {
        char path[512];
        struct stat st;
        int n = snprintf(path, sizeof(path), "%s/%.*s", folders[i], (int)(name.n < 256 ? name.n : 256), name.p);
        if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || access(path, X_OK) != 0)
            continue;
        r->failed |= !semel__arena_copy(&r->owned->arena, (struct semel_str){path, (size_t)n}, ret);
        return !r->failed;
    }
    semel__conf_must(r, node, "a program of /usr/local/bin, /usr/bin or /bin, or the path of one");
    return false;
}

struct program {
    struct semel_setting_list argv;
    struct semel_str file;
};

static bool parse_program(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    struct program found = {0};
    const struct conf_node *first = node->shape == CONF_LIST ? node->first : node;
    if (!parse_texts(r, s, node, &found.argv) || !find_program(r, first, &found.file))
        return false;
    memcpy(at, &found.argv, sizeof(found.argv));
    memcpy((char *)at + s->size, &found.file, sizeof(found.file)); /* the field behind it, or where the table says */
    return true;
}

/* ---- all of them --------------------------------------------------------------------------------- */

bool semel__conf_parse(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    static bool (*const takes[])(struct conf_reader *, const struct semel_setting_spec *, struct conf_node *,
                                 void *) = {
        [SEMEL_SETTING_TEXT] = parse_text,       [SEMEL_SETTING_WORD] = parse_word,
        [SEMEL_SETTING_NUMBER] = parse_number,   [SEMEL_SETTING_TIME] = parse_number,
        [SEMEL_SETTING_FLAG] = parse_flag,       [SEMEL_SETTING_RULE] = parse_rule,
        [SEMEL_SETTING_RULES] = parse_rules,     [SEMEL_SETTING_TEXTS] = parse_texts,
        [SEMEL_SETTING_PAIRS] = parse_pairs,     [SEMEL_SETTING_ADDRESS] = parse_address,
        [SEMEL_SETTING_URL] = parse_url,         [SEMEL_SETTING_FILE] = parse_file,
        [SEMEL_SETTING_PROGRAM] = parse_program,
    };
    return takes[s->kind](r, s, node, at);
}
