/* SPDX-License-Identifier: MIT
 *
 * expand.c: what comes into the settings from elsewhere: ${NAME} from the environment, secrets from files.
 *
 * ${NAME} is replaced in values only, after the file was parsed: whatever a variable holds, it stays one value and
 * cannot bring keys of its own. $${ stands for ${ itself.
 *
 * Invariants: what was replaced lies in memory that is wiped when the settings are freed, its node is marked as
 * `outside`, and no text quotes it. A variable that is not set is a mistake, not an empty text.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "conf/private.h"

#define NAME_MAX_BYTES 128

struct conf_secret {
    struct conf_secret *next;
    size_t n;
    char bytes[];
};

/* ---- memory -------------------------------------------------------------------------------------- */

/* n bytes and a NUL. NULL: no memory. */
static char *secret_new(struct conf_reader *r, size_t n)
{
    struct conf_secret *secret = semel__alloc(sizeof(*secret) + n + 1);
    r->failed |= secret == NULL;
    if (secret == NULL)
        return NULL;
    secret->n = n + 1;
    secret->next = r->owned->secrets;
    r->owned->secrets = secret;
    memset(secret->bytes, 0, n + 1);
    return secret->bytes;
}

void semel__conf_secrets_free(struct conf_owned *owned)
{
    while (owned->secrets != NULL) {
        struct conf_secret *next = owned->secrets->next;
        explicit_bzero(owned->secrets->bytes, owned->secrets->n);
        semel__free(owned->secrets);
        owned->secrets = next;
    }
}

/* ---- the environment ----------------------------------------------------------------------------- */

static bool name_char(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (!first && c >= '0' && c <= '9');
}

/* ${NAME} at the beginning of s: how long it is, and the name; 0: it is none. */
static size_t variable(struct semel_str s, char name[NAME_MAX_BYTES])
{
    size_t n = 0;
    while (n + 2 < s.n && n + 1 < NAME_MAX_BYTES && name_char(s.p[2 + n], n == 0))
        n++;
    if (n == 0 || n + 2 >= s.n || s.p[2 + n] != '}')
        return 0;
    memcpy(name, s.p + 2, n);
    name[n] = '\0';
    return n + 3;
}

/* Where the i-th "${" of a node stands in the text, from 0; the node itself where it cannot be told. */
static struct conf_place variable_place(const struct conf_reader *r, const struct conf_node *node, size_t i, size_t n)
{
    const char *p = r->input->text.p + node->place.at, *end = p + node->place.n;
    for (; p + 1 < end; p++)
        if (p[0] == '$' && p[1] == '{' && i-- == 0)
            return (struct conf_place){(size_t)(p - r->input->text.p), n};
    return semel__conf_place(r, node);
}

struct expansion {
    struct conf_reader *r;
    struct conf_node *node;
    size_t seen; /* how many ${ have been met */
    char *out;   /* NULL: only counting */
    size_t n;
    bool outside;
};

static void put(struct expansion *x, const char *p, size_t n)
{
    if (x->out != NULL)
        memcpy(x->out + x->n, p, n);
    x->n += n;
}

/* One ${...}; returns how many bytes of the text it has. */
static size_t put_variable(struct expansion *x, struct semel_str rest)
{
    char name[NAME_MAX_BYTES];
    size_t n = variable(rest, name);
    const struct semel_conf_input *input = x->r->input;
    const char *value = n > 0 && input->env != NULL ? input->env(input->env_ctx, name) : NULL;
    struct conf_place place = variable_place(x->r, x->node, x->seen++, n > 0 ? n : 2);
    if (value != NULL) {
        put(x, value, strlen(value));
        x->outside = true;
        return n;
    }
    if (x->out == NULL && n > 0)
        semel__conf_wrong(x->r, place, "the environment has no variable %s; set it, or write $${ for ${ itself", name);
    else if (x->out == NULL)
        semel__conf_wrong(x->r, place,
                          "${ must be followed by the name of an environment variable and }; write $${ for ${ itself");
    x->node->bad = true;
    return n > 0 ? n : 2;
}

/* Twice: to count and tell mistakes, then to write. */
static void replace(struct expansion *x)
{
    struct semel_str s = x->node->said;
    x->n = x->seen = 0;
    for (size_t i = 0; i < s.n;) {
        struct semel_str rest = {s.p + i, s.n - i};
        bool opens = rest.n > 1 && rest.p[0] == '$' && rest.p[1] == '{';
        if (rest.n > 2 && rest.p[0] == '$' && rest.p[1] == '$' && rest.p[2] == '{') {
            put(x, "${", 2);
            x->seen++;
            i += 3;
        } else if (opens)
            i += put_variable(x, rest);
        else {
            put(x, rest.p, 1);
            i++;
        }
    }
}

static void expand_scalar(struct conf_reader *r, struct conf_node *node)
{
    struct expansion x = {.r = r, .node = node};
    if (node->bad || memchr(node->said.p, '$', node->said.n) == NULL)
        return;
    replace(&x);
    size_t n = x.n;
    if (node->bad || (x.out = secret_new(r, n)) == NULL)
        return;
    replace(&x);
    node->text = (struct semel_str){x.out, n};
    node->outside = x.outside;
    if (semel__utf8_valid(node->text) || n == 0)
        return;
    semel__conf_wrong(r, semel__conf_place(r, node), "what the environment has for this value is not UTF-8 text");
    node->bad = true;
}

void semel__conf_expand(struct conf_reader *r, struct conf_node *node)
{
    if (node->shape == CONF_SCALAR)
        expand_scalar(r, node);
    for (struct conf_node *child = node->first; child != NULL && !r->failed; child = child->next)
        semel__conf_expand(r, child); /* as deep as CONF_DEPTH_MAX */
}

/* ---- files --------------------------------------------------------------------------------------- */

bool semel__conf_resolve(struct conf_reader *r, struct semel_str name, struct semel_str *ret)
{
    struct semel_buf buf;
    const char *folder = r->input->folder;
    semel__buf_init(&buf, 2 * CONF_TEXT_MAX);
    if (folder != NULL && name.n > 0 && name.p[0] != '/')
        semel__buf_addf(&buf, "%s/", folder);
    semel__buf_add(&buf, name.p, name.n);
    bool ok = !buf.failed && semel__arena_copy(&r->owned->arena, semel__buf_str(&buf), ret);
    semel__buf_done(&buf);
    r->failed |= !ok;
    return ok;
}

/* Up to CONF_SECRET_MAX bytes and one more. Below 0: errno. */
static ssize_t slurp(const char *path, char *out)
{
    struct stat st;
    ssize_t total = 0, n = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        errno = EINVAL;
        total = -1;
    }
    while (total >= 0 && n != 0 && total <= CONF_SECRET_MAX) {
        n = read(fd, out + total, (size_t)(CONF_SECRET_MAX + 1 - total));
        if (n < 0 && errno == EINTR)
            continue;
        total = n < 0 ? -1 : total + n;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return total;
}

static const char *complaint(ssize_t n, struct semel_str content)
{
    if (n < 0)
        return errno == EINVAL ? "it is not a regular file" : strerror(errno); /* NOLINT(concurrency-mt-unsafe) */
    if (n > CONF_SECRET_MAX)
        return "it is too large for a secret; at most 65536 bytes are allowed";
    if (content.n == 0)
        return "it is empty";
    if (!semel__utf8_valid(content))
        return "it is not UTF-8 text";
    return NULL;
}

/* The content without its last line break. `bytes` has room for CONF_SECRET_MAX + 1. */
static const char *read_secret(const char *path, char *bytes, struct semel_str *ret)
{
    ssize_t n = slurp(path, bytes);
    *ret = (struct semel_str){bytes, n > 0 ? (size_t)n : 0};
    if (ret->n > 0 && bytes[ret->n - 1] == '\n')
        ret->n--;
    if (ret->n > 0 && bytes[ret->n - 1] == '\r')
        ret->n--;
    return complaint(n, *ret);
}

void semel__conf_secret_file(struct conf_reader *r, struct conf_node *node)
{
    struct semel_str path, content;
    char *bytes = semel__alloc(CONF_SECRET_MAX + 1), shown[128];
    r->failed |= bytes == NULL;
    if (bytes == NULL || !semel__conf_resolve(r, node->text, &path)) {
        semel__free(bytes);
        return;
    }
    const char *why = read_secret(path.p, bytes, &content);
    char *kept = why == NULL ? secret_new(r, content.n) : NULL;
    if (kept != NULL) {
        memcpy(kept, content.p, content.n);
        node->text = (struct semel_str){kept, content.n};
        node->outside = true;
        node->plain = false;
    }
    explicit_bzero(bytes, CONF_SECRET_MAX + 1);
    semel__free(bytes);
    if (why == NULL)
        return;
    semel__str_show(shown, sizeof(shown), node->said);
    semel__conf_wrong(r, semel__conf_place(r, node), "%s: the secret file %s cannot be read: %s", r->path, shown, why);
    node->bad = true;
}
