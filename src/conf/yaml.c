/* SPDX-License-Identifier: MIT
 *
 * yaml.c: from the text of a file to a tree of ours, by the events of libfyaml's parser.
 *
 * Not its documents: those resolve anchors and build whatever a file asks for. Of the events we take what settings are
 * made of (mappings with keys of text, lists, scalars) and refuse the rest where it stands.
 *
 * Invariants: the text is UTF-8 without control characters before libfyaml sees it. Nothing recurses: the depth of a
 * file is bounded by a stack of our own. libfyaml's first complaint ends the reading, because what it would say next
 * follows from it.
 */
#include <libfyaml.h>

#include "base/error.h"
#include "conf/private.h"

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

static void take_key(struct builder *b, size_t level, struct conf_node *node)
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
        take_key(b, level, node);
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

/* Anchors and tags: told where they stand, together with the sign before them. */
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
static void tell_library(struct builder *b, struct fy_diag *diag)
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
        tell_library(b, diag);
    }
}

struct conf_node *semel__conf_tree(struct conf_reader *r)
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
