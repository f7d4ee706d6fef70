/* SPDX-License-Identifier: MIT
 *
 * read.c: from a file to settings: its bytes become a tree, ${NAME} in the tree is replaced, and the tree is walked
 * along the table of the settings into structs.
 *
 * It knows no setting by its name. value.c checks values, route.c checks settings against each other, and mistake.c
 * writes every mistake down.
 *
 * Invariants: what is given out has no mistake; otherwise nothing is given out. Memory that held secrets is wiped
 * before it is freed, on every way out.
 */
#include <errno.h>
#include <fcntl.h>
#include <libfyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "conf/private.h"
#include "core/row.h"

/* ==== the tree ======================================================================================
 *
 * From the text of a file to a tree of ours, by the events of libfyaml's parser.
 *
 * Not its documents: those resolve anchors and build whatever a file asks for. Of the events we take what settings are
 * made of (mappings with keys of text, lists, scalars) and refuse the rest where it stands.
 *
 * Invariants: the text is UTF-8 without control characters before libfyaml sees it. Nothing recurses: the depth of a
 * file is bounded by a stack of our own. libfyaml's first complaint ends the reading, because what it would say next
 * follows from it.
 */

struct builder {
    struct conf_reader *r;
    struct conf_node *stack[CONF_DEPTH_MAX];
    struct conf_node *last[CONF_DEPTH_MAX]; /* the last child, on each level */
    struct conf_node *key[CONF_DEPTH_MAX];  /* of a mapping: its key has come, its value has not */
    size_t depth;
    struct conf_node *root;
    size_t documents;
    bool over; /* too much of something: no more is read */
};

/* ---- before the parser --------------------------------------------------------------------------- */

/* Where a byte stands that has no business in a text file; n: nowhere. */
static size_t foreign_byte(struct semel_str text)
{
    size_t i = 0;
    while (i < text.n) {
        uint32_t c = 0;
        size_t n = semel__utf8_next((struct semel_str){text.p + i, text.n - i}, &c);
        bool bom = i == 0 && c == 0xFEFF;
        if (n == 0 || (!semel__utf8_shown(c) && !bom && c != '\n' && c != '\t' && c != '\r'))
            return i;
        i += n;
    }
    return text.n;
}

static bool readable(struct conf_reader *r)
{
    struct semel_str text = r->input->text;
    if (text.n > SEMEL_CONF_TEXT_MAX) {
        semel__conf_wrong(r, (struct conf_place){0, 0}, "the file has %zu bytes; at most %zu are allowed", text.n,
                          SEMEL_CONF_TEXT_MAX);
        return false;
    }
    size_t at = foreign_byte(text);
    if (at < text.n)
        semel__conf_wrong(r, (struct conf_place){at, 1},
                          "a byte that is no text stands here (0x%02x); the file must be UTF-8 without control and "
                          "invisible characters",
                          (unsigned char)text.p[at]);
    return at == text.n;
}

/* ---- nodes --------------------------------------------------------------------------------------- */

static struct conf_node *node_new(struct builder *b, enum conf_shape shape, struct conf_place place)
{
    struct conf_reader *r = b->r;
    if (++r->nodes > CONF_NODES_MAX) {
        semel__conf_wrong(r, place, "there is too much in this file; at most %d values are allowed", CONF_NODES_MAX);
        b->over = true;
        return NULL;
    }
    struct conf_node *node = semel__arena_alloc(&r->owned->arena, 1, sizeof(*node));
    r->failed |= node == NULL;
    if (node != NULL)
        *node = (struct conf_node){.shape = shape, .place = place};
    return node;
}

static void parse_key(struct builder *b, size_t level, struct conf_node *node)
{
    if (node->shape != CONF_SCALAR) {
        semel__conf_wrong(b->r, node->place, "a key must be text, not a mapping or a list");
        b->over = true;
    }
    b->key[level] = node;
}

/* Hangs it below what is open: as a key, as a value of the last key, or as an element. */
static void hang(struct builder *b, struct conf_node *node)
{
    if (b->depth == 0) {
        b->root = node;
        return;
    }
    size_t level = b->depth - 1;
    struct conf_node *parent = b->stack[level], *key = b->key[level];
    if (parent->shape == CONF_MAPPING && key == NULL) {
        parse_key(b, level, node);
        return;
    }
    if (key != NULL) {
        node->key = key->text;
        node->key_place = key->place;
        if (node->place.n == 0 && node->shape == CONF_SCALAR)
            node->place = key->place;
        b->key[level] = NULL;
    }
    if (b->last[level] == NULL)
        parent->first = node;
    else
        b->last[level]->next = node;
    b->last[level] = node;
}

static void open_node(struct builder *b, struct conf_node *node)
{
    hang(b, node);
    if (b->over)
        return;
    if (b->depth == CONF_DEPTH_MAX) {
        semel__conf_wrong(b->r, node->place, "this is nested too deep; at most %d levels are allowed", CONF_DEPTH_MAX);
        b->over = true;
        return;
    }
    b->stack[b->depth] = node;
    b->last[b->depth] = NULL;
    b->key[b->depth] = NULL;
    b->depth++;
}

/* ---- events -------------------------------------------------------------------------------------- */

static struct conf_place token_place(const struct builder *b, struct fy_token *token)
{
    const struct fy_mark *start = token != NULL ? fy_token_start_mark(token) : NULL;
    const struct fy_mark *end = token != NULL ? fy_token_end_mark(token) : NULL;
    size_t n = b->r->input->text.n;
    if (start == NULL || end == NULL || start->input_pos > n || end->input_pos > n || end->input_pos < start->input_pos)
        return (struct conf_place){0, 0};
    return (struct conf_place){start->input_pos, end->input_pos - start->input_pos};
}

/* libfyaml's marks stand inside the quotes. */
static struct conf_place scalar_place(const struct builder *b, struct fy_token *token, enum fy_scalar_style style)
{
    struct conf_place place = token_place(b, token);
    bool quoted = style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED;
    if (quoted && place.at > 0 && place.at + place.n < b->r->input->text.n)
        place = (struct conf_place){place.at - 1, place.n + 2};
    return place;
}

/* Anchors and tags: reported at their place, together with the sign before them. */
static bool decorated(struct builder *b, struct fy_event *event)
{
    struct fy_token *anchor = fy_event_get_anchor_token(event), *tag = fy_event_get_tag_token(event);
    if (event->type == FYET_ALIAS)
        anchor = NULL;
    if (anchor != NULL)
        semel__conf_wrong(b->r, token_place(b, anchor),
                          "anchors and aliases have no meaning here; write the value out");
    if (tag != NULL)
        semel__conf_wrong(b->r, token_place(b, tag), "tags have no meaning here; the setting itself says its type");
    return anchor != NULL || tag != NULL;
}

static void on_scalar(struct builder *b, struct fy_event *event)
{
    struct fy_token *token = event->scalar.value;
    enum fy_scalar_style style = token != NULL ? fy_token_scalar_style(token) : FYSS_PLAIN;
    size_t n = 0;
    const char *p = token != NULL ? fy_token_get_text(token, &n) : NULL;
    struct semel_str text = {p != NULL ? p : "", p != NULL ? n : 0};
    struct conf_node *node = node_new(b, CONF_SCALAR, scalar_place(b, token, style));
    if (node == NULL)
        return;
    node->plain = style == FYSS_PLAIN;
    node->bad = decorated(b, event);
    b->r->failed |= !semel__arena_copy(&b->r->owned->arena, text, &node->text);
    node->said = node->text;
    if (!node->bad && !semel__utf8_valid(node->text)) { /* an escape: "\0", "\xff" */
        semel__conf_wrong(b->r, node->place, "this text has a NUL or is not UTF-8 when its escapes are read");
        node->bad = true;
    }
    hang(b, node);
}

static void on_alias(struct builder *b, struct fy_event *event)
{
    struct conf_node *node = node_new(b, CONF_SCALAR, token_place(b, event->alias.anchor));
    if (node == NULL)
        return;
    semel__conf_wrong(b->r, node->place, "anchors and aliases have no meaning here; write the value out");
    node->text = node->said = SEMEL_STR("");
    node->bad = true;
    hang(b, node);
}

static void on_open(struct builder *b, struct fy_event *event, enum conf_shape shape)
{
    struct conf_node *node = node_new(b, shape, token_place(b, fy_event_get_token(event)));
    if (node == NULL)
        return;
    node->bad = decorated(b, event);
    open_node(b, node);
}

static void on_document(struct builder *b, struct fy_event *event)
{
    if (++b->documents == 1)
        return;
    semel__conf_wrong(b->r, token_place(b, event->document_start.document_start),
                      "a second document begins here; the settings are one document");
    b->over = true;
}

static void on_event(struct builder *b, struct fy_event *event)
{
    switch (event->type) {
    case FYET_SCALAR:
        on_scalar(b, event);
        break;
    case FYET_ALIAS:
        on_alias(b, event);
        break;
    case FYET_MAPPING_START:
        on_open(b, event, CONF_MAPPING);
        break;
    case FYET_SEQUENCE_START:
        on_open(b, event, CONF_LIST);
        break;
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        b->depth -= b->depth > 0;
        break;
    case FYET_DOCUMENT_START:
        on_document(b, event);
        break;
    case FYET_NONE:
    case FYET_STREAM_START:
    case FYET_STREAM_END:
    case FYET_DOCUMENT_END:
        break;
    }
}

/* ---- all of them --------------------------------------------------------------------------------- */

/* What the library said first; of a wrong %YAML it says nothing. */
static void report_library(struct builder *b, struct fy_diag *diag)
{
    void *at = NULL;
    const struct fy_diag_error *error = fy_diag_errors_iterate(diag, &at);
    if (error == NULL || error->msg == NULL) {
        semel__conf_wrong(b->r, (struct conf_place){0, 0},
                          "this cannot be read as YAML; if it begins with a line of %%, take that out");
        return;
    }
    size_t offset = semel__conf_offset(b->r->input->text, error->line, error->column);
    struct semel_str text = b->r->input->text;
    bool variable = offset > 0 && offset < text.n && text.p[offset] == '{' && text.p[offset - 1] == '$';
    if (variable)
        semel__conf_wrong(b->r, (struct conf_place){offset - 1, 2},
                          "this is not YAML: inside { } and [ ] a value with ${...} must stand in quotes");
    else
        semel__conf_wrong(b->r, (struct conf_place){offset, 1}, "this is not YAML: %s", error->msg);
}

static void parse(struct builder *b, struct fy_parser *parser, struct fy_diag *diag)
{
    struct fy_event *event;
    if (fy_parser_set_string(parser, b->r->input->text.p, b->r->input->text.n) != 0) {
        b->r->failed = true;
        return;
    }
    while (!b->over && !b->r->failed && (event = fy_parser_parse(parser)) != NULL) {
        on_event(b, event);
        fy_parser_event_free(parser, event);
    }
    if (!b->over && !b->r->failed && fy_parser_get_stream_error(parser)) {
        b->over = true;
        report_library(b, diag);
    }
}

static struct conf_node *build_tree(struct conf_reader *r)
{
    struct builder b = {.r = r};
    struct fy_diag_cfg quiet;
    if (!readable(r))
        return NULL;
    fy_diag_cfg_default(&quiet);
    quiet.fp = NULL;
    quiet.colorize = false;
    struct fy_diag *diag = fy_diag_create(&quiet);
    if (diag != NULL)
        fy_diag_set_collect_errors(diag, true);
    struct fy_parse_cfg how = {.flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG | FYPCF_JSON_NONE, .diag = diag};
    struct fy_parser *parser = diag != NULL && r->input->text.n > 0 ? fy_parser_create(&how) : NULL;
    r->failed |= diag == NULL || (parser == NULL && r->input->text.n > 0);
    if (parser != NULL) {
        parse(&b, parser, diag);
        fy_parser_destroy(parser);
    }
    if (diag != NULL)
        fy_diag_destroy(diag);
    if (b.over || r->failed)
        return NULL;
    if (b.root == NULL || (b.root->shape == CONF_SCALAR && b.root->text.n == 0 && !b.root->bad)) {
        semel__conf_wrong(r, (struct conf_place){0, 0}, "the file says nothing; semel init prints one to start with");
        return NULL;
    }
    return b.root;
}

/* ==== what comes from elsewhere =====================================================================
 *
 * What comes into the settings from elsewhere: ${NAME} from the environment, secrets from files.
 *
 * ${NAME} is replaced in values only, after the file was parsed: whatever a variable holds, it stays one value and
 * cannot bring keys of its own. $${ stands for ${ itself.
 *
 * Invariants: what was replaced lies in memory that is wiped when the settings are freed, its node is marked as
 * `outside`, and no text quotes it. A variable that is not set is a mistake, not an empty text.
 */

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

static void secrets_free(struct conf_owned *owned)
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

/* The place of the i-th "${" of a node in the text, from 0; the node itself where it is unknown. */
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

static void put_bytes(struct expansion *x, const char *p, size_t n)
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
        put_bytes(x, value, strlen(value));
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

/* Twice: to count and report mistakes, then to write. */
static void replace(struct expansion *x)
{
    struct semel_str s = x->node->said;
    x->n = x->seen = 0;
    for (size_t i = 0; i < s.n;) {
        struct semel_str rest = {s.p + i, s.n - i};
        bool opens = rest.n > 1 && rest.p[0] == '$' && rest.p[1] == '{';
        if (rest.n > 2 && rest.p[0] == '$' && rest.p[1] == '$' && rest.p[2] == '{') {
            put_bytes(x, "${", 2);
            x->seen++;
            i += 3;
        } else if (opens)
            i += put_variable(x, rest);
        else {
            put_bytes(x, rest.p, 1);
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

static void expand(struct conf_reader *r, struct conf_node *node)
{
    if (node->shape == CONF_SCALAR)
        expand_scalar(r, node);
    for (struct conf_node *child = node->first; child != NULL && !r->failed; child = child->next)
        expand(r, child); /* as deep as CONF_DEPTH_MAX */
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

/* The text of a secret file, in the place of `node`'s own. */
static void parse_secret_file(struct conf_reader *r, struct conf_node *node)
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

/* ==== the walk ======================================================================================
 *
 * A mapping is read by one group of the table: defaults first, then each key by its setting.
 *
 * Invariants: every key of the file is either read or reported. A setting whose value is bad counts as said, so that
 * one mistake is not reported twice.
 */

/* The nodes that were found for the settings of one group. */
struct found {
    struct conf_node *node[CONF_SETTINGS_MAX];
    bool by_file[CONF_SETTINGS_MAX]; /* NAME_file was said instead */
    bool meant[CONF_SETTINGS_MAX];   /* a mistyped key was taken for it */
};

static void read_group(struct conf_reader *r, const struct semel_setting_group *group, struct conf_node *node,
                       char *base);

/* ---- the path ------------------------------------------------------------------------------------ */

static size_t enter(struct conf_reader *r, const char *name)
{
    size_t n = strlen(r->path);
    snprintf(r->path + n, sizeof(r->path) - n, "%s%s", n > 0 ? "." : "", name);
    return n;
}

static void leave(struct conf_reader *r, size_t n)
{
    r->path[n] = '\0';
}

static const char *here(const struct conf_reader *r)
{
    return r->path[0] != '\0' ? r->path : "the file";
}

const struct conf_node *semel__conf_find(const struct conf_node *node, const char *path)
{
    while (*path != '\0' && node->shape == CONF_MAPPING) {
        size_t n = strcspn(path, ".");
        const struct conf_node *child = node->first;
        while (child != NULL && !semel__str_eq(child->key, (struct semel_str){path, n}))
            child = child->next;
        if (child == NULL)
            break;
        node = child;
        path += n + (path[n] == '.');
    }
    return node;
}

bool semel__conf_sound(const struct conf_node *node, const char *path)
{
    while (*path != '\0' && !(node->bad && node->tainted)) {
        size_t n = strcspn(path, ".");
        const struct conf_node *found = NULL;
        bool strange = false;
        for (const struct conf_node *child = node->first; child != NULL; child = child->next) {
            if (found == NULL && semel__str_eq(child->key, (struct semel_str){path, n}))
                found = child;
            strange |= child->bad && !child->tainted;
        }
        if (found == NULL)
            return !strange;
        node = found;
        path += n + (path[n] == '.');
    }
    return !node->bad && !node->tainted;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

/* NAME, or NAME_file of a secret. */
static bool key_is(const struct semel_setting_spec *s, struct semel_str key, bool *ret_by_file)
{
    size_t n = strlen(s->name);
    *ret_by_file = (s->flags & SEMEL_SETTING_SECRET) != 0 && key.n == n + 5 && memcmp(key.p, s->name, n) == 0 &&
                   memcmp(key.p + n, "_file", 5) == 0;
    return *ret_by_file || semel__str_eqz(key, s->name);
}

static void unknown_key(struct conf_reader *r, const struct semel_setting_group *group, const struct conf_node *node,
                        struct found *found)
{
    char text[41], twins[CONF_SETTINGS_MAX][48], all[400] = "";
    const char *names[2 * CONF_SETTINGS_MAX];
    size_t n = 0, length = 0;
    for (size_t i = 0; i < group->n; i++)
        names[n++] = group->settings[i].name;
    for (size_t i = 0; i < n && length < sizeof(all); i++)
        length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s", i > 0 ? ", " : "", names[i]);
    for (size_t i = 0; i < group->n; i++)
        if ((group->settings[i].flags & SEMEL_SETTING_SECRET) != 0) {
            snprintf(twins[i], sizeof(twins[i]), "%s_file", group->settings[i].name);
            names[n++] = twins[i];
        }
    semel__str_show(text, sizeof(text), node->key);
    const char *near = node->key.n < sizeof(text) ? semel__nearest(text, names, n) : NULL;
    semel__conf_wrong_at(r, node->key_place, text, "%s has no setting \"%s%s\"; %s%s%s", here(r), text,
                         node->key.n >= sizeof(text) ? "..." : "", near != NULL ? "did you mean " : "there are ",
                         near != NULL ? near : all, near != NULL ? "?" : "");
    for (size_t i = 0; i < group->n && near != NULL; i++)
        found->meant[i] |= strncmp(near, group->settings[i].name, strlen(group->settings[i].name)) == 0;
}

static int line_of(const struct conf_reader *r, size_t at)
{
    int line = 1;
    for (size_t i = 0; i < at; i++)
        line += r->input->text.p[i] == '\n';
    return line;
}

static void said_twice(struct conf_reader *r, const struct conf_node *again, const struct conf_node *first)
{
    char text[41], other[41];
    semel__str_show(text, sizeof(text), again->key);
    semel__str_show(other, sizeof(other), first->key);
    if (semel__str_eq(again->key, first->key))
        semel__conf_wrong_at(r, again->key_place, text, "\"%s\" is given twice; it is in line %d already", text,
                             line_of(r, first->key_place.at));
    else
        semel__conf_wrong_at(r, again->key_place, text, "\"%s\" and \"%s\" are both said; one of them is right", other,
                             text);
}

static void find_keys(struct conf_reader *r, const struct semel_setting_group *group, struct conf_node *node,
                      struct found *found)
{
    for (struct conf_node *child = node->first; child != NULL; child = child->next) {
        size_t i = 0;
        bool by_file = false;
        while (i < group->n && !key_is(&group->settings[i], child->key, &by_file))
            i++;
        child->bad |= i == group->n;
        if (i == group->n)
            unknown_key(r, group, child, found);
        else if (found->node[i] != NULL)
            said_twice(r, child, found->node[i]);
        else {
            found->node[i] = child;
            found->by_file[i] = by_file;
        }
    }
}

/* ---- one of several ------------------------------------------------------------------------------ */

_Static_assert(offsetof(struct semel_do, kind) == 0, "the kind is first");

/* A key that was meant for a kind is reported, and read as that kind: it is given out. NULL: there is none. */
static struct conf_node *not_chosen(struct conf_reader *r, const struct semel_setting_spec *s,
                                    const struct conf_node *node)
{
    char names[128] = "", text[41];
    const char *list[8];
    size_t n = 0, length = 0;
    for (; semel__conf_choice(s, n) != NULL; n++) {
        list[n] = semel__conf_choice(s, n)->name;
        length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s", n > 0 ? ", " : "", list[n]);
    }
    for (struct conf_node *child = node->first; child != NULL; child = child->next) {
        semel__str_show(text, sizeof(text), child->key);
        const char *near = strcmp(text, "rabbitmq") == 0 ? "amqp" : semel__nearest(text, list, n);
        if (near == NULL)
            continue;
        semel__conf_wrong(r, child->key_place, "%s has no setting \"%s\"; did you mean %s?", r->path, text, near);
        child->key = semel__str(near);
        return child;
    }
    semel__conf_wrong(r, semel__conf_place(r, node), "%s does not say which kind it is; it must have one of %s",
                      r->path, names);
    return NULL;
}

/* The choice that a key selects; choices' end: none. */
static size_t choice_of(const struct semel_setting_spec *s, struct semel_str key)
{
    size_t i = 0;
    bool by_file;
    while (semel__conf_choice(s, i) != NULL && !key_is(&semel__conf_choice(s, i)->settings[0], key, &by_file))
        i++;
    return i;
}

/* The options of a source or a sink are its kind's own, and lie in the arena, zeroed. */
static char *choose_broker(struct conf_reader *r, size_t chosen, bool sink, struct semel_source *at)
{
    at->kind = sink ? semel__sink_kinds[chosen] : semel__broker_kinds[chosen];
    at->options = semel__arena_alloc(&r->owned->arena, 1, sink ? at->kind->to_options_size : at->kind->options_size);
    r->failed |= at->options == NULL;
    return at->options;
}

static char *choose_handler(size_t chosen, struct semel_do *at)
{
    at->kind = (enum semel_do_kind)chosen;
    return (char *)&at->u;
}

/* `from: inbox`: a choice that has nothing else to set may be written as its name alone. */
static bool choose_by_name(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *node,
                           void *at)
{
    size_t i = node->shape == CONF_SCALAR && s->kind == SEMEL_SETTING_SOURCE ? choice_of(s, node->text) : 0;
    const struct semel_setting_group *group = node->shape == CONF_SCALAR ? semel__conf_choice(s, i) : NULL;
    if (s->kind != SEMEL_SETTING_SOURCE || group == NULL || !semel__conf_bare(group))
        return false;
    (void)choose_broker(r, i, false, at); /* zeroed: the one word that there is */
    return true;
}

static void choose(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, void *at)
{
    const struct conf_node *kind = NULL;
    size_t chosen = 0;
    bool ok = true;
    if (choose_by_name(r, s, node, at))
        return;
    if (node->shape != CONF_MAPPING || node->first == NULL) {
        (void)not_chosen(r, s, node);
        return;
    }
    for (const struct conf_node *child = node->first; child != NULL; child = child->next) {
        size_t i = choice_of(s, child->key);
        if (semel__conf_choice(s, i) == NULL || (kind != NULL && i == chosen))
            continue;
        if (kind != NULL) {
            semel__conf_wrong(r, child->key_place, "%s is of two kinds, %s and %s; one of them is right", r->path,
                              semel__conf_choice(s, chosen)->name, semel__conf_choice(s, i)->name);
            ok = false;
        } else {
            kind = child;
            chosen = i;
        }
    }
    if (kind == NULL && (kind = not_chosen(r, s, node)) != NULL)
        chosen = choice_of(s, kind->key);
    if (kind == NULL || !ok)
        return;
    char *options = s->kind == SEMEL_SETTING_ONE_OF ? choose_handler(chosen, at)
                                                    : choose_broker(r, chosen, s->kind == SEMEL_SETTING_SINK, at);
    if (options != NULL)
        read_group(r, semel__conf_choice(s, chosen), node, options);
}

/* ---- routes -------------------------------------------------------------------------------------- */

static bool route_name_ok(struct conf_reader *r, const struct conf_node *first, const struct conf_node *route)
{
    struct semel_error err;
    for (const struct conf_node *before = first; before != route; before = before->next)
        if (semel__str_eq(before->key, route->key)) {
            said_twice(r, route, before);
            return false;
        }
    if (semel__id_check("the name of a route", route->key, 1, &err) == SEMEL_OK)
        return true;
    semel__conf_wrong(r, route->key_place, "%s", err.text);
    return false;
}

static void read_route(struct conf_reader *r, const struct semel_setting_group *group, struct conf_node *node,
                       struct semel_route *route)
{
    char name[101];
    semel__str_show(name, sizeof(name), node->key);
    size_t back = enter(r, name);
    size_t before = r->mistakes->n + r->mistakes->more;
    r->route_path = strlen(r->path);
    r->n_said = 0;
    route->name = node->key;
    if (node->shape != CONF_MAPPING)
        semel__conf_must(r, node, "a mapping with at least `from` and `do`");
    else {
        r->partly[route - r->owned->conf.routes] = node;
        read_group(r, group, node, (char *)route);
        semel__conf_policy(r, route, node);
    }
    node->tainted = r->mistakes->n + r->mistakes->more != before;
    const bool pulls = route->handler.kind == SEMEL_DO_PULL; /* it has an address, too */
    if (route->from.kind == NULL || !semel__conf_sound(node, "from") || (pulls && !semel__conf_sound(node, "do")))
        r->routes[route - r->owned->conf.routes] = NULL; /* what others could say of it would follow from that */
    leave(r, back);
}

static void read_routes(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node)
{
    struct semel_conf *conf = &r->owned->conf;
    size_t n = 0;
    for (const struct conf_node *child = node->first; node->shape == CONF_MAPPING && child != NULL; child = child->next)
        n++;
    if (n == 0 || n > SEMEL_CONF_ROUTES_MAX) {
        semel__conf_must(r, node, "a mapping of 1 to 256 names to routes");
        return;
    }
    conf->routes = semel__arena_alloc(&r->owned->arena, n, sizeof(*conf->routes));
    r->routes = semel__arena_alloc(&r->owned->arena, n, sizeof(struct conf_node *));
    r->partly = semel__arena_alloc(&r->owned->arena, n, sizeof(struct conf_node *));
    r->failed |= conf->routes == NULL || r->routes == NULL || r->partly == NULL;
    for (struct conf_node *child = node->first; child != NULL && !r->failed; child = child->next) {
        if (child->bad || !route_name_ok(r, node->first, child))
            continue;
        r->routes[conf->n_routes] = child;
        read_route(r, s->group, child, &conf->routes[conf->n_routes++]);
    }
}

/* ---- outboxes and gateways ----------------------------------------------------------------------- */

/* Items by name. The name is an item's first member. */
struct named {
    void **items;
    size_t *n;
    struct conf_node ***nodes; /* of them; NULL: it is no mapping */
    size_t size, max;
    const char *kind, *lacks; /* "outboxes"; what one needs at least */
};

static void read_one(struct conf_reader *r, const struct semel_setting_group *group, struct conf_node *node,
                     const struct named *named, size_t i)
{
    char name[101], right[64], *item = (char *)*named->items + i * named->size;
    semel__str_show(name, sizeof(name), node->key);
    size_t back = enter(r, name);
    memcpy(item, &node->key, sizeof(node->key));
    snprintf(right, sizeof(right), "a mapping with at least %s", named->lacks);
    if (node->shape == CONF_MAPPING) {
        read_group(r, group, node, item);
    } else {
        semel__conf_must(r, node, right);
        (*named->nodes)[i] = NULL;
    }
    leave(r, back);
}

static void read_named(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node,
                       const struct named *named)
{
    size_t n = 0;
    char right[64];
    for (const struct conf_node *child = node->first; node->shape == CONF_MAPPING && child != NULL; child = child->next)
        n++;
    if (n == 0 || n > named->max) {
        snprintf(right, sizeof(right), "a mapping of 1 to %zu names to %s", named->max, named->kind);
        semel__conf_must(r, node, right);
        return;
    }
    *named->items = semel__arena_alloc(&r->owned->arena, n, named->size);
    *named->nodes = semel__arena_alloc(&r->owned->arena, n, sizeof(struct conf_node *));
    r->failed |= *named->items == NULL || *named->nodes == NULL;
    for (struct conf_node *child = node->first; child != NULL && !r->failed; child = child->next) {
        if (child->bad || !route_name_ok(r, node->first, child))
            continue;
        (*named->nodes)[*named->n] = child;
        read_one(r, s->group, child, named, (*named->n)++);
    }
}

static void read_outboxes(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node)
{
    struct semel_conf *conf = &r->owned->conf;
    void *items = NULL;
    const struct named named = {
        &items, &conf->n_outboxes, &r->outboxes, sizeof(*conf->outboxes), SEMEL_CONF_OUTBOXES_MAX, "outboxes", "`to`"};
    read_named(r, s, node, &named);
    conf->outboxes = items;
}

static void read_gateways(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node)
{
    struct semel_conf *conf = &r->owned->conf;
    void *items = NULL;
    const struct named named = {
        &items,     &conf->n_gateways,        &r->gateways, sizeof(*conf->gateways), SEMEL_CONF_GATEWAYS_MAX,
        "gateways", "`listen` and `upstream`"};
    read_named(r, s, node, &named);
    conf->gateways = items;
}

/* A list of mappings: "guard[0]". */
static void read_groups(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, char *at)
{
    size_t n = 0, i = 0;
    char right[64];
    for (const struct conf_node *child = node->first; node->shape == CONF_LIST && child != NULL; child = child->next)
        n++;
    if (n == 0 || n > (size_t)s->high) {
        snprintf(right, sizeof(right), "a list of 1 to %lld mappings", (long long)s->high);
        semel__conf_must(r, node, right);
        return;
    }
    char *items = semel__arena_alloc(&r->owned->arena, n, s->item_size);
    r->failed |= items == NULL;
    for (struct conf_node *child = node->first; child != NULL && !r->failed; child = child->next, i++) {
        const size_t back = strlen(r->path);
        snprintf(r->path + back, sizeof(r->path) - back, "[%zu]", i);
        if (!child->bad && child->shape != CONF_MAPPING)
            semel__conf_must(r, child, "a mapping");
        else if (!child->bad)
            read_group(r, s->group, child, items + i * s->item_size);
        child->bad |= child->shape != CONF_MAPPING;
        leave(r, back);
    }
    memcpy(at, &items, sizeof(items));
    memcpy(at + sizeof(items), &n, sizeof(n));
}

/* ---- one setting --------------------------------------------------------------------------------- */

static void note_member(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node)
{
    struct conf_said *said = &r->said[r->n_said++];
    *said = (struct conf_said){.member = s->member, .node = node, .setting = s};
    snprintf(said->path, sizeof(said->path), "%s", r->path + r->route_path + 1);
}

/* true and false are short for {} and for not saying it. */
static void read_subgroup(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, char *at)
{
    bool is_switch = (s->flags & SEMEL_SETTING_SWITCH) != 0;
    bool scalar = node->shape == CONF_SCALAR && node->plain && is_switch;
    bool on = node->shape == CONF_MAPPING || (scalar && semel__str_eqz(node->text, "true"));
    char right[64];
    if (!on && !(scalar && semel__str_eqz(node->text, "false"))) {
        semel__conf_type(s, right, sizeof(right));
        semel__conf_must(r, node, right);
        return;
    }
    if (is_switch)
        memcpy(at, &on, sizeof(on));
    if (on)
        read_group(r, s->group, node, at);
}

/* NAME_file names a file; where NAME may be a list, perhaps several. */
static void parse_secret_files(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node)
{
    bool list = node->shape == CONF_LIST && s->kind == SEMEL_SETTING_TEXTS && node->first != NULL;
    for (struct conf_node *each = list ? node->first : node; each != NULL; each = list ? each->next : NULL) {
        if (!each->bad && (each->shape != CONF_SCALAR || each->text.n == 0))
            semel__conf_must(r, each, "the name of a file");
        else if (!each->bad)
            parse_secret_file(r, each);
        each->bad |= !each->outside;
        node->bad |= each->bad;
    }
}

static bool has_tainted(const struct conf_node *node)
{
    for (const struct conf_node *child = node->first; child != NULL; child = child->next)
        if (child->bad || child->tainted)
            return true;
    return false;
}

static void read_setting(struct conf_reader *r, const struct semel_setting_spec *s, struct conf_node *node, char *base,
                         bool by_file)
{
    char name[64];
    snprintf(name, sizeof(name), "%s%s", s->name, by_file ? "_file" : "");
    size_t back = enter(r, name);
    const size_t before = r->mistakes->n + r->mistakes->more;
    if (by_file && !node->bad)
        parse_secret_files(r, s, node);
    if (node->bad || r->failed) {
        node->tainted = true;
        leave(r, back);
        return;
    }
    switch (s->kind) {
    case SEMEL_SETTING_GROUP:
        read_subgroup(r, s, node, base + s->offset);
        break;
    case SEMEL_SETTING_ONE_OF:
    case SEMEL_SETTING_SOURCE:
    case SEMEL_SETTING_SINK:
        choose(r, s, node, base + s->offset);
        break;
    case SEMEL_SETTING_ROUTES:
        read_routes(r, s, node);
        break;
    case SEMEL_SETTING_OUTBOXES:
        read_outboxes(r, s, node);
        break;
    case SEMEL_SETTING_GATEWAYS:
        read_gateways(r, s, node);
        break;
    case SEMEL_SETTING_GROUPS:
        read_groups(r, s, node, base + s->offset);
        break;
    case SEMEL_SETTING_MEMBER:
        note_member(r, s, node);
        break;
    case SEMEL_SETTING_TEXT:
    case SEMEL_SETTING_WORD:
    case SEMEL_SETTING_NUMBER:
    case SEMEL_SETTING_TIME:
    case SEMEL_SETTING_FLAG:
    case SEMEL_SETTING_RULE:
    case SEMEL_SETTING_RULES:
    case SEMEL_SETTING_TEXTS:
    case SEMEL_SETTING_PAIRS:
    case SEMEL_SETTING_ADDRESS:
    case SEMEL_SETTING_URL:
    case SEMEL_SETTING_FILE:
    case SEMEL_SETTING_PROGRAM:
        node->bad |= !semel__conf_parse(r, s, node, base + s->offset);
        break;
    }
    node->tainted = r->mistakes->n + r->mistakes->more != before || has_tainted(node);
    leave(r, back);
}

/* ---- a group ------------------------------------------------------------------------------------- */

static void set_defaults(struct conf_reader *r, const struct semel_setting_group *group, char *base)
{
    for (size_t i = 0; i < group->n; i++) {
        const struct semel_setting_spec *s = &group->settings[i];
        struct conf_node node = {.plain = true,
                                 .text = semel__str(s->default_text),
                                 .said = semel__str(s->default_text)};
        if (s->kind == SEMEL_SETTING_GROUP)
            set_defaults(r, s->group, base + s->offset);
        else if (s->default_text != NULL)
            semel__conf_parse(r, s, &node, base + s->offset);
    }
}

static void missing(struct conf_reader *r, const struct semel_setting_spec *s, const struct conf_node *node)
{
    struct conf_place whole = node == r->tree ? (struct conf_place){0, 0} : node->place;
    struct conf_place place = node->key.p != NULL ? node->key_place : whole;
    bool below = s->kind >= SEMEL_SETTING_GROUP; /* its own settings say what it must be */
    char type[256];
    semel__conf_type(s, type, sizeof(type));
    semel__conf_wrong_at(r, place, s->name, "%s lacks %s: %s%s%s", here(r), s->name, s->help,
                         below ? "" : "; it must be ", below ? "" : type);
}

static void read_group(struct conf_reader *r, const struct semel_setting_group *group, struct conf_node *node,
                       char *base)
{
    struct found found = {.node = {NULL}};
    set_defaults(r, group, base);
    find_keys(r, group, node, &found);
    for (size_t i = 0; i < group->n && !r->failed; i++) {
        const struct semel_setting_spec *s = &group->settings[i];
        if (found.node[i] != NULL)
            read_setting(r, s, found.node[i], base, found.by_file[i]);
        else if ((s->flags & SEMEL_SETTING_REQUIRED) != 0 && !found.meant[i])
            missing(r, s, node);
    }
}

/* What one setting says of another, now that all are read: also in a route that has mistakes, of what has none. */
static void again_route(struct conf_reader *r, size_t i)
{
    char name[101], path[128];
    semel__str_show(name, sizeof(name), r->partly[i]->key);
    snprintf(path, sizeof(path), "routes.%s", name);
    size_t back = enter(r, path);
    semel__conf_route(r, &r->owned->conf.routes[i], r->partly[i]);
    leave(r, back);
}

static void walk(struct conf_reader *r)
{
    struct semel_conf *conf = &r->owned->conf;
    r->path[0] = '\0';
    if (r->tree->shape != CONF_MAPPING) {
        if (!r->tree->bad)
            semel__conf_wrong(r, r->tree->place,
                              "the file must be a mapping that begins with `store:`, and has `routes:`, `outboxes:` or "
                              "`gateways:`");
        return;
    }
    read_group(r, &semel__conf_root, r->tree, (char *)conf);
    if (semel__str_given(conf->store))
        conf->store_kind = conf->store.p[0] == 's' ? SEMEL_CONF_STORE_SQLITE : SEMEL_CONF_STORE_POSTGRES;
    const struct conf_node *store = semel__conf_find(r->tree, "store");
    if (store == r->tree)
        store = semel__conf_find(r->tree, "store_file");
    conf->store_said = store->said;
    for (size_t i = 0; i < conf->n_routes && !r->failed; i++)
        if (r->partly[i] != NULL)
            again_route(r, i);
    if (conf->n_routes + conf->n_outboxes + conf->n_gateways == 0 && r->mistakes->n == 0)
        semel__conf_wrong(r, r->tree->place,
                          "the file has neither routes nor outboxes nor gateways: there is nothing to run");
    semel__conf_between(r);
    semel__conf_gateways(r);
}

/* ==== all of it ================================================================================== */

/* ---- from text ----------------------------------------------------------------------------------- */

void semel__conf_free(struct semel_conf *conf)
{
    struct conf_owned *owned = (struct conf_owned *)conf;
    if (owned == NULL)
        return;
    secrets_free(owned);
    semel__arena_done(&owned->arena);
    semel__free(owned);
}

semel_status semel__conf_read(const struct semel_conf_input *input, struct semel_conf **ret,
                              struct semel_conf_mistakes *mistakes, struct semel_error *err)
{
    struct conf_owned *owned = semel__calloc(1, sizeof(*owned));
    struct conf_reader *r = semel__calloc(1, sizeof(*r)); /* too large for a stack */
    semel_status status = SEMEL_OK;
    mistakes->file = input->name;
    if (owned == NULL || r == NULL) {
        semel__free(owned);
        semel__free(r);
        return semel__fail_memory(err);
    }
    semel__arena_init(&owned->arena, CONF_ARENA_MAX);
    *r = (struct conf_reader){.input = input, .owned = owned, .mistakes = mistakes};
    r->tree = build_tree(r);
    if (r->tree != NULL)
        expand(r, r->tree);
    if (r->tree != NULL && !r->failed)
        walk(r);
    if (r->failed)
        status = semel__fail_memory(err);
    else if (mistakes->n > 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: there %s %zu mistake%s in the settings",
                             input->name, mistakes->n == 1 ? "is" : "are", mistakes->n + mistakes->more,
                             mistakes->n == 1 ? "" : "s");
    if (status == SEMEL_OK)
        *ret = &owned->conf;
    else
        semel__conf_free(&owned->conf);
    semel__free(r);
    return status;
}

/* ---- from a file --------------------------------------------------------------------------------- */

static const char *from_environment(void *ctx, const char *name)
{
    (void)ctx;
    return getenv(name); /* NOLINT(concurrency-mt-unsafe): settings are read before there are threads */
}

static semel_status unreadable(const char *file, const char *why, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s cannot be read: %s", file, why);
}

static semel_status drain(int fd, const char *file, struct semel_buf *buf, struct semel_error *err)
{
    char chunk[16384];
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return unreadable(file, "it is a directory", err);
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return unreadable(file, strerror(errno), err); /* NOLINT(concurrency-mt-unsafe) */
        if (n == 0)
            return SEMEL_OK;
        if (!semel__buf_add(buf, chunk, (size_t)n))
            return buf->full ? unreadable(file, "it has more than 1 MiB", err) : semel__fail_memory(err);
    }
}

/* The folder of a file, for the relative names in it; NULL: the working directory. */
static const char *folder_of(const char *file, char *out, size_t size)
{
    const char *slash = strrchr(file, '/');
    if (slash == NULL || (size_t)(slash - file) >= size)
        return NULL;
    snprintf(out, size, "%.*s", slash == file ? 1 : (int)(slash - file), file);
    return out;
}

semel_status semel__conf_load(const char *file, struct semel_conf **ret, struct semel_conf_mistakes *mistakes,
                              struct semel_error *err)
{
    bool is_stdin = strcmp(file, "-") == 0;
    char folder[4096];
    struct semel_conf_input input = {.name = is_stdin ? "stdin" : file, .env = from_environment};
    struct semel_buf buf;
    int fd = is_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return unreadable(file, strerror(errno), err); /* NOLINT(concurrency-mt-unsafe) */
    semel__buf_init(&buf, SEMEL_CONF_TEXT_MAX);
    semel_status status = drain(fd, input.name, &buf, err);
    if (!is_stdin)
        close(fd);
    input.text = semel__buf_str(&buf);
    input.folder = is_stdin ? NULL : folder_of(file, folder, sizeof(folder));
    if (status == SEMEL_OK)
        status = semel__conf_read(&input, ret, mistakes, err);
    if (buf.p != NULL)
        explicit_bzero(buf.p, buf.n);
    semel__buf_done(&buf);
    return status;
}
