/* SPDX-License-Identifier: MIT
 *
 * read.c: walks the tree of a file along the table of the settings.
 *
 * A mapping is read by one group of the table: defaults first, then each key by its setting. What is unknown, said
 * twice or missing is told here, what is wrong with a value in value.c, what one setting says of another in route.c.
 *
 * Invariants: every key of the file is either read or told. A setting whose value is bad counts as said, so that one
 * mistake is not told twice.
 */
#include <stdio.h>

#include "base/error.h"
#include "conf/private.h"
#include "core/row.h"

/* What was found for the settings of one group. */
struct found {
    struct conf_node *node[CONF_SETTINGS_MAX];
    bool by_file[CONF_SETTINGS_MAX]; /* NAME_file was said instead */
    bool meant[CONF_SETTINGS_MAX];   /* a mistyped key was taken for it */
};

static void read_group(struct conf_reader *r, const struct conf_group *group, struct conf_node *node, char *base);

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

/* ---- keys ---------------------------------------------------------------------------------------- */

/* NAME, or NAME_file of a secret. */
static bool key_is(const struct conf_setting *s, struct semel_str key, bool *ret_by_file)
{
    size_t n = strlen(s->name);
    *ret_by_file = (s->flags & CONF_SECRET) != 0 && key.n == n + 5 && memcmp(key.p, s->name, n) == 0 &&
                   memcmp(key.p + n, "_file", 5) == 0;
    return *ret_by_file || semel__str_eqz(key, s->name);
}

static void unknown_key(struct conf_reader *r, const struct conf_group *group, const struct conf_node *node,
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
        if ((group->settings[i].flags & CONF_SECRET) != 0) {
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
        semel__conf_wrong_at(r, again->key_place, text, "\"%s\" is said twice; it stands in line %d already", text,
                             line_of(r, first->key_place.at));
    else
        semel__conf_wrong_at(r, again->key_place, text, "\"%s\" and \"%s\" are both said; one of them is right", other,
                             text);
}

static void find_keys(struct conf_reader *r, const struct conf_group *group, struct conf_node *node,
                      struct found *found)
{
    for (struct conf_node *child = node->first; child != NULL; child = child->next) {
        size_t i = 0;
        bool by_file = false;
        while (i < group->n && !key_is(&group->settings[i], child->key, &by_file))
            i++;
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

_Static_assert(offsetof(struct semel_source, u) == offsetof(struct semel_do, u), "both are read by choose");
_Static_assert(offsetof(struct semel_source, kind) == 0 && offsetof(struct semel_do, kind) == 0, "the kind is first");

static void not_chosen(struct conf_reader *r, const struct conf_setting *s, const struct conf_node *node)
{
    char names[128] = "", text[41];
    const char *list[8], *near = NULL;
    size_t n = 0, length = 0;
    for (; s->choices[n] != NULL; n++) {
        list[n] = s->choices[n]->name;
        length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s", n > 0 ? ", " : "", list[n]);
    }
    for (const struct conf_node *child = node->first; child != NULL && near == NULL; child = child->next) {
        semel__str_show(text, sizeof(text), child->key);
        near = semel__nearest(text, list, n);
        if (near != NULL)
            semel__conf_wrong(r, child->key_place, "%s has no setting \"%s\"; did you mean %s?", r->path, text, near);
    }
    if (near == NULL)
        semel__conf_wrong(r, semel__conf_place(r, node), "%s does not say which kind it is; it must have one of %s",
                          r->path, names);
}

/* Which choice a key tells; choices' end: none. */
static size_t choice_of(const struct conf_group *const *choices, struct semel_str key)
{
    size_t i = 0;
    bool by_file;
    while (choices[i] != NULL && !key_is(&choices[i]->settings[0], key, &by_file))
        i++;
    return i;
}

static void choose(struct conf_reader *r, const struct conf_setting *s, struct conf_node *node, char *at)
{
    const struct conf_node *teller = NULL;
    size_t chosen = 0;
    bool ok = true;
    if (node->shape != CONF_MAPPING || node->first == NULL) {
        not_chosen(r, s, node);
        return;
    }
    for (const struct conf_node *child = node->first; child != NULL; child = child->next) {
        size_t i = choice_of(s->choices, child->key);
        if (s->choices[i] == NULL || (teller != NULL && i == chosen))
            continue;
        if (teller != NULL) {
            semel__conf_wrong(r, child->key_place, "%s is of two kinds, %s and %s; one of them is right", r->path,
                              s->choices[chosen]->name, s->choices[i]->name);
            ok = false;
        } else {
            teller = child;
            chosen = i;
        }
    }
    if (teller == NULL)
        not_chosen(r, s, node);
    if (teller == NULL || !ok)
        return;
    const int kind = (int)chosen;
    memcpy(at, &kind, sizeof(kind));
    read_group(r, s->choices[chosen], node, at + offsetof(struct semel_source, u));
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

static void read_route(struct conf_reader *r, const struct conf_group *group, struct conf_node *node,
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
        read_group(r, group, node, (char *)route);
        semel__conf_policy(r, route, node);
    }
    if (r->mistakes->n + r->mistakes->more != before)
        r->routes[route - r->owned->conf.routes] = NULL; /* what else could be said of it would follow from that */
    leave(r, back);
}

static void read_routes(struct conf_reader *r, const struct conf_setting *s, struct conf_node *node)
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
    r->failed |= conf->routes == NULL || r->routes == NULL;
    for (struct conf_node *child = node->first; child != NULL && !r->failed; child = child->next) {
        if (child->bad || !route_name_ok(r, node->first, child))
            continue;
        r->routes[conf->n_routes] = child;
        read_route(r, s->group, child, &conf->routes[conf->n_routes++]);
    }
}

/* ---- one setting --------------------------------------------------------------------------------- */

static void note_member(struct conf_reader *r, const struct conf_setting *s, struct conf_node *node)
{
    struct conf_said *said = &r->said[r->n_said++];
    *said = (struct conf_said){.member = s->member, .node = node, .setting = s};
    snprintf(said->path, sizeof(said->path), "%s", r->path + r->route_path + 1);
}

/* true and false are short for {} and for not saying it. */
static void read_subgroup(struct conf_reader *r, const struct conf_setting *s, struct conf_node *node, char *at)
{
    bool is_switch = (s->flags & CONF_SWITCH) != 0;
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

static void read_setting(struct conf_reader *r, const struct conf_setting *s, struct conf_node *node, char *base,
                         bool by_file)
{
    char name[64];
    snprintf(name, sizeof(name), "%s%s", s->name, by_file ? "_file" : "");
    size_t back = enter(r, name);
    if (by_file && !node->bad) {
        if (node->shape != CONF_SCALAR || node->text.n == 0)
            semel__conf_must(r, node, "the name of a file");
        else
            semel__conf_secret_file(r, node);
        node->bad |= !node->outside;
    }
    if (node->bad || r->failed) {
        leave(r, back);
        return;
    }
    switch (s->kind) {
    case CONF_GROUP:
        read_subgroup(r, s, node, base + s->offset);
        break;
    case CONF_ONE_OF:
        choose(r, s, node, base + s->offset);
        break;
    case CONF_ROUTES:
        read_routes(r, s, node);
        break;
    case CONF_MEMBER:
        note_member(r, s, node);
        break;
    case CONF_TEXT:
    case CONF_WORD:
    case CONF_NUMBER:
    case CONF_TIME:
    case CONF_FLAG:
    case CONF_RULE:
    case CONF_RULES:
    case CONF_TEXTS:
    case CONF_PAIRS:
    case CONF_ADDRESS:
    case CONF_URL:
    case CONF_FILE:
    case CONF_PROGRAM:
        node->bad |= !semel__conf_take(r, s, node, base + s->offset);
        break;
    }
    leave(r, back);
}

/* ---- a group ------------------------------------------------------------------------------------- */

static void set_defaults(struct conf_reader *r, const struct conf_group *group, char *base)
{
    for (size_t i = 0; i < group->n; i++) {
        const struct conf_setting *s = &group->settings[i];
        struct conf_node node = {.plain = true, .text = semel__str(s->other), .said = semel__str(s->other)};
        if (s->kind == CONF_GROUP)
            set_defaults(r, s->group, base + s->offset);
        else if (s->other != NULL)
            semel__conf_take(r, s, &node, base + s->offset);
    }
}

static void missing(struct conf_reader *r, const struct conf_setting *s, const struct conf_node *node)
{
    struct conf_place place = node->key.p != NULL ? node->key_place : (struct conf_place){0, 0};
    char type[256];
    semel__conf_type(s, type, sizeof(type));
    semel__conf_wrong_at(r, place, s->name, "%s lacks %s: %s%s%s", here(r), s->name, s->help,
                         s->kind == CONF_GROUP || s->kind == CONF_ONE_OF || s->kind == CONF_ROUTES ? ""
                                                                                                   : "; it must be ",
                         s->kind == CONF_GROUP || s->kind == CONF_ONE_OF || s->kind == CONF_ROUTES ? "" : type);
}

static void read_group(struct conf_reader *r, const struct conf_group *group, struct conf_node *node, char *base)
{
    struct found found = {.node = {NULL}};
    set_defaults(r, group, base);
    find_keys(r, group, node, &found);
    for (size_t i = 0; i < group->n && !r->failed; i++) {
        const struct conf_setting *s = &group->settings[i];
        if (found.node[i] != NULL)
            read_setting(r, s, found.node[i], base, found.by_file[i]);
        else if ((s->flags & CONF_REQUIRED) != 0 && !found.meant[i])
            missing(r, s, node);
    }
}

/* What one setting says of another, now that all are read. */
static void again_route(struct conf_reader *r, size_t i)
{
    char name[101], path[128];
    semel__str_show(name, sizeof(name), r->routes[i]->key);
    snprintf(path, sizeof(path), "routes.%s", name);
    size_t back = enter(r, path);
    semel__conf_route(r, &r->owned->conf.routes[i], r->routes[i]);
    leave(r, back);
}

void semel__conf_walk(struct conf_reader *r)
{
    struct semel_conf *conf = &r->owned->conf;
    r->path[0] = '\0';
    if (r->tree->shape != CONF_MAPPING) {
        if (!r->tree->bad)
            semel__conf_wrong(r, r->tree->place, "the file must be a mapping that begins with `store:` and `routes:`");
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
        if (r->routes[i] != NULL)
            again_route(r, i);
    semel__conf_between(r);
}
