/* SPDX-License-Identifier: MIT
 *
 * member.c: the settings that core keeps for every consumer (core/consumer.h): from the file to a policy.
 *
 * The table of core says what they are, and its own reader checks them. Here they only change their names: what a
 * route calls retry.max is retry_max there. Two of them are not said in the file at all, because they follow from it:
 * `effect` from the handler, `order` from the rules.
 *
 * Invariants: nothing of what core knows is known here; a text of core's is taken over with the names put right. The
 * JSON that is left in the route is what core read last, so storing it makes every other door go by it.
 */
#include <stdio.h>

#include "base/error.h"
#include "base/json.h"
#include "conf/private.h"
#include "core/consumer.h"

#define VALUE_MAX 40 /* bytes; no right value is longer */
#define RIGHT 256

/* ---- names --------------------------------------------------------------------------------------- */

/* Where a group says a member, below `before`. */
static bool find_member(const struct conf_group *group, struct semel_str member, const char *before, char *out,
                        size_t size)
{
    for (size_t i = 0; i < group->n; i++) {
        const struct conf_setting *s = &group->settings[i];
        char path[96];
        snprintf(path, sizeof(path), "%s%s%s", before, before[0] != '\0' ? "." : "", s->name);
        if (s->kind == CONF_MEMBER && semel__str_eqz(member, s->member)) {
            snprintf(out, size, "%s", path);
            return true;
        }
        if (s->kind == CONF_GROUP && find_member(s->group, member, path, out, size))
            return true;
    }
    return false;
}

static const struct conf_group *route_group(void)
{
    for (size_t i = 0; i < semel__conf_root.n; i++)
        if (semel__conf_root.settings[i].kind == CONF_ROUTES)
            return semel__conf_root.settings[i].group;
    return NULL;
}

static bool in_name(char c)
{
    return (c >= 'a' && c <= 'z') || c == '_';
}

void semel__conf_translate(const char *text, char *out, size_t size)
{
    size_t n = 0;
    while (*text != '\0' && n + 1 < size) {
        struct semel_str word = {text, 0};
        char path[96];
        if (*text == '|') {
            n += (size_t)snprintf(out + n, size - n, "%s", ", ");
            text++;
            continue;
        }
        while (in_name(text[word.n]))
            word.n++;
        if (word.n > 0 && find_member(route_group(), word, "", path, sizeof(path)))
            n += (size_t)snprintf(out + n, size - n, "%s", path);
        else
            n += (size_t)snprintf(out + n, size - n, "%.*s", word.n > 0 ? (int)word.n : 1, text);
        text += word.n > 0 ? word.n : 1;
    }
    out[size - 1] = '\0';
}

/* ---- to JSON ------------------------------------------------------------------------------------- */

static bool is_json(struct semel_str text)
{
    size_t i = text.n > 1 && text.p[0] == '-';
    if (semel__str_eqz(text, "true") || semel__str_eqz(text, "false"))
        return true;
    if (text.n == i || (text.p[i] == '0' && text.n > i + 1))
        return false;
    for (; i < text.n; i++)
        if (text.p[i] < '0' || text.p[i] > '9')
            return false;
    return true;
}

static void put_value(struct semel_buf *buf, const struct conf_node *node)
{
    char text[VALUE_MAX + 1];
    semel__str_show(text, sizeof(text), node->text.n <= VALUE_MAX ? node->text : SEMEL_STR("..."));
    if (node->plain && is_json(semel__str(text)))
        semel__buf_addz(buf, text);
    else
        semel__json_put_string(buf, semel__str(text));
}

static const char *effect_of(const struct semel_route *route)
{
    switch (route->handler.kind) {
    case SEMEL_DO_SQL:
        return "atomic";
    case SEMEL_DO_HTTP:
        return route->handler.u.http.idempotent ? "keyed" : "outside";
    case SEMEL_DO_EXEC:
        return route->handler.u.exec.idempotent ? "keyed" : "outside";
    case SEMEL_DO_PULL:
        return route->handler.u.pull.idempotent ? "keyed" : "outside";
    }
    return "outside";
}

static const char *order_of(const struct semel_route *route)
{
    if (route->rules.order.kind == SEMEL_RULE_DEFAULT)
        return "none";
    return route->rules.version.kind == SEMEL_RULE_DEFAULT ? "arrival" : "version";
}

static void put_all(const struct conf_reader *r, const struct semel_route *route, struct semel_buf *buf)
{
    semel__buf_addf(buf, "{\"effect\":\"%s\",\"order\":\"%s\"", effect_of(route), order_of(route));
    for (size_t i = 0; i < r->n_said; i++) {
        const struct conf_said *said = &r->said[i];
        if (said->node->bad)
            continue;
        semel__buf_addf(buf, ",\"%s\":", said->member);
        put_value(buf, said->node);
    }
    semel__buf_addz(buf, "}");
}

/* ---- what is wrong ------------------------------------------------------------------------------- */

static struct conf_said *said_as(struct conf_reader *r, struct semel_str member)
{
    for (size_t i = 0; i < r->n_said; i++)
        if (!r->said[i].node->bad && semel__str_eqz(member, r->said[i].member))
            return &r->said[i];
    return NULL;
}

/* The first member in the text that the file says: NULL: none. */
static struct conf_said *said_in(struct conf_reader *r, const char *text)
{
    struct conf_said *said = NULL;
    while (*text != '\0' && said == NULL) {
        size_t n = 0;
        while (in_name(text[n]))
            n++;
        said = n > 0 ? said_as(r, (struct semel_str){text, n}) : NULL;
        text += n > 0 ? n : 1;
    }
    return said;
}

/* "retry_max is 0; it must be a whole number, 1 to 1000". The one to blame is bad afterwards. */
static bool tell(struct conf_reader *r, const struct conf_node *route, const char *text)
{
    static const char must[] = "; it must be ";
    char right[RIGHT], is[96];
    const char *at = strstr(text, must);
    struct conf_said *said = said_in(r, text);
    bool own = said != NULL && strncmp(text, said->member, strlen(said->member)) == 0;
    semel__conf_translate(at != NULL && own ? at + strlen(must) : text, right, sizeof(right));
    if (said == NULL) { /* two that follow from the rest contradict each other */
        semel__conf_wrong(r, route->key_place, "%s: %s", r->path, right);
        return false;
    }
    semel__conf_show(said->node, is, sizeof(is));
    if (own && at != NULL)
        semel__conf_wrong_at(r, semel__conf_place(r, said->node), said->path, "%s.%s is %s; it must be %s", r->path,
                             said->path, is, right);
    else
        semel__conf_wrong_at(r, semel__conf_place(r, said->node), said->path, "%s: %s", r->path, right);
    said->node->bad = true;
    return true;
}

/* Lists and mappings have no JSON here. */
static void only_scalars(struct conf_reader *r)
{
    for (size_t i = 0; i < r->n_said; i++) {
        struct conf_said *said = &r->said[i];
        char is[96];
        if (said->node->shape == CONF_SCALAR)
            continue;
        semel__conf_show(said->node, is, sizeof(is));
        semel__conf_wrong_at(r, semel__conf_place(r, said->node), said->path, "%s.%s is %s; it must be a single value",
                             r->path, said->path, is);
        said->node->bad = true;
    }
}

/* OK, or what core says of it, without whose settings they are. */
static semel_status ask_core(struct semel_str json, struct semel_policy *ret, struct semel_error *err)
{
    static const char before[] = "settings of consumer \"route\": ";
    semel_status status = semel__policy_read(SEMEL_STR("route"), json, ret, NULL, err);
    if (status == SEMEL_INVALID && strncmp(err->text, before, sizeof(before) - 1) == 0)
        memmove(err->text, err->text + sizeof(before) - 1, strlen(err->text) - sizeof(before) + 2);
    return status;
}

void semel__conf_policy(struct conf_reader *r, struct semel_route *route, const struct conf_node *node)
{
    struct semel_error err;
    semel_status status = SEMEL_INVALID;
    only_scalars(r);
    for (bool more = true; more && !r->failed && status == SEMEL_INVALID;) {
        struct semel_buf json;
        semel__buf_init(&json, SEMEL_SETTINGS_MAX);
        put_all(r, route, &json);
        status = json.failed ? SEMEL_RETRY : ask_core(semel__buf_str(&json), &route->policy, &err);
        r->failed |= status != SEMEL_OK && status != SEMEL_INVALID;
        if (status == SEMEL_INVALID)
            more = tell(r, node, err.text);
        if (status == SEMEL_OK)
            r->failed |= !semel__arena_copy(&r->owned->arena, semel__buf_str(&json), &route->settings);
        semel__buf_done(&json);
    }
    route->policy.consumer = route->name;
}
