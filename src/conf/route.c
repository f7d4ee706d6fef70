/* SPDX-License-Identifier: MIT
 *
 * route.c: what one setting says of another: what a route promises, its policy, the checks within a route, and those
 * between routes.
 *
 * It also fills in the defaults that depend on other settings (a group is called like its route). The checks run when
 * each setting for itself is right, so that every mistake reported here is one of its own.
 *
 * Invariants: what would lose messages in silence is refused: two routes that share one queue would each see a part of
 * it. What others can reach is encrypted and asks for a token; a password, or a message for a handler, goes to another
 * host only when its certificate is checked, unless that is asked for.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/error.h"
#include "base/json.h"
#include "conf/private.h"
#include "core/consumer.h"
#include "handler/sql.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

/* ---- words --------------------------------------------------------------------------------------- */

static void put_shown(struct semel_buf *buf, struct semel_str s)
{
    char text[161];
    semel__str_show(text, sizeof(text), s);
    semel__buf_addf(buf, "%s%s", text, s.n >= sizeof(text) ? "..." : "");
}

/* What the file says there; never what a variable or a secret file holds. */
static void put_said(struct semel_buf *buf, const struct conf_node *node, const char *path)
{
    const struct conf_node *found = semel__conf_find(node, path);
    if (found->shape == CONF_SCALAR)
        put_shown(buf, found->said);
    for (const struct conf_node *each = found->shape == CONF_LIST ? found->first : NULL; each != NULL;
         each = each->next) {
        put_shown(buf, each->said);
        semel__buf_addz(buf, each->next != NULL ? " " : "");
    }
}

/* ==== the policy ====================================================================================
 *
 * The settings that core keeps for every consumer (core/consumer.h): from the file to a policy.
 *
 * The table of core says what they are, and its own reader checks them. Here they only change their names: what a
 * route calls retry.max is retry_max there. Two of them are not said in the file at all, because they follow from it:
 * `effect` from the handler, `order` from the rules.
 *
 * Invariants: nothing of what core knows is known here; a text of core's is taken over with the names put right. The
 * JSON that is left in the route is what core read last, so storing it makes every other program go by it.
 */

#define VALUE_MAX 40 /* bytes; no right value is longer */
#define RIGHT 256

/* ---- names --------------------------------------------------------------------------------------- */

/* Where a group says a member, below `before`. */
static bool find_member(const struct semel_setting_group *group, struct semel_str member, const char *before, char *out,
                        size_t size)
{
    for (size_t i = 0; i < group->n; i++) {
        const struct semel_setting_spec *s = &group->settings[i];
        char path[96];
        snprintf(path, sizeof(path), "%s%s%s", before, before[0] != '\0' ? "." : "", s->name);
        if (s->kind == SEMEL_SETTING_MEMBER && semel__str_eqz(member, s->member)) {
            snprintf(out, size, "%s", path);
            return true;
        }
        if (s->kind == SEMEL_SETTING_GROUP && find_member(s->group, member, path, out, size))
            return true;
    }
    return false;
}

static const struct semel_setting_group *route_group(void)
{
    for (size_t i = 0; i < semel__conf_root.n; i++)
        if (semel__conf_root.settings[i].kind == SEMEL_SETTING_ROUTES)
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

/* "retry.max is 0; it must be a whole number, 1 to 1000". The one to blame is bad afterwards. */
static bool report(struct conf_reader *r, const struct conf_node *route, const struct semel_setting_fault *fault)
{
    char right[RIGHT], is[96];
    struct conf_said *own = fault->member != NULL ? said_as(r, semel__str(fault->member)) : NULL;
    struct conf_said *said = own == NULL && fault->other != NULL ? said_as(r, semel__str(fault->other)) : own;
    semel__conf_translate(own != NULL ? fault->right : fault->err.text, right, sizeof(right));
    if (said == NULL) { /* two that follow from the rest contradict each other */
        semel__conf_wrong(r, route->key_place, "%s: %s", r->path, right);
        return false;
    }
    semel__conf_show(said->node, is, sizeof(is));
    if (own != NULL)
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

void semel__conf_policy(struct conf_reader *r, struct semel_route *route, const struct conf_node *node)
{
    struct semel_setting_fault fault;
    semel_status status = SEMEL_INVALID;
    only_scalars(r);
    for (bool more = true; more && !r->failed && status == SEMEL_INVALID;) {
        struct semel_buf json;
        semel__buf_init(&json, SEMEL_SETTINGS_MAX);
        put_all(r, route, &json);
        status = json.failed ? SEMEL_RETRY
                             : semel__policy_try(SEMEL_STR("route"), semel__buf_str(&json), &route->policy, &fault);
        r->failed |= status != SEMEL_OK && status != SEMEL_INVALID;
        if (status == SEMEL_INVALID)
            more = report(r, node, &fault);
        if (status == SEMEL_OK)
            r->failed |= !semel__arena_copy(&r->owned->arena, semel__buf_str(&json), &route->settings);
        semel__buf_done(&json);
    }
    route->policy.consumer = route->name;
}

/* ==== the statement =================================================================================
 *
 * The statement of a sql handler and its values: what the handler itself says of them without a database,
 * at the place in the file that it speaks of.
 */

/* "values, $2: ...": the second element. */
static struct conf_place value_place(const struct conf_reader *r, const struct conf_node *route, const char *text)
{
    static const char before[] = "values, $";
    const struct conf_node *values = semel__conf_find(route, "values"), *each = values->first;
    if (!semel__str_eqz(values->key, "values")) /* they are missing */
        return semel__conf_place(r, semel__conf_find(route, "do.sql"));
    if (strncmp(text, before, sizeof(before) - 1) != 0)
        return semel__conf_place(r, values);
    for (long i = strtol(text + sizeof(before) - 1, NULL, 10); i > 1 && each != NULL; i--)
        each = each->next;
    return each != NULL ? each->place : semel__conf_place(r, values);
}

/* "statement, line 1, column 8: ...": there, where the file has the statement as it is, without escapes and folds. */
static struct conf_place statement_place(const struct conf_reader *r, const struct conf_node *route, const char *text)
{
    static const char before[] = "statement, line ", between[] = ", column ";
    const struct conf_node *node = semel__conf_find(route, "do.sql");
    struct semel_str file = r->input->text, said = node->said;
    char *end = NULL;
    if (strncmp(text, before, sizeof(before) - 1) != 0)
        return semel__conf_place(r, node);
    long line = strtol(text + sizeof(before) - 1, &end, 10);
    if (strncmp(end, between, sizeof(between) - 1) != 0)
        return semel__conf_place(r, node);
    long column = strtol(end + sizeof(between) - 1, NULL, 10);
    size_t start = node->place.at + !node->plain;
    if (start + said.n > file.n || memcmp(file.p + start, said.p, said.n) != 0)
        return semel__conf_place(r, node);
    return (struct conf_place){start + semel__conf_offset(said, (int)line, (int)column), 1};
}

static bool from_outside(const struct conf_node *route)
{
    const struct conf_node *values = semel__conf_find(route, "values");
    bool outside = semel__conf_find(route, "do.sql")->outside || values->outside;
    for (const struct conf_node *each = values->shape == CONF_LIST ? values->first : NULL; each != NULL;
         each = each->next)
        outside |= each->outside;
    return outside;
}

static void statement_wrong(struct conf_reader *r, const struct conf_node *node, const char *text)
{
    bool values = strncmp(text, "values", 6) == 0;
    struct conf_place place = values ? value_place(r, node, text) : statement_place(r, node, text);
    if (from_outside(node)) /* the text may quote it */
        semel__conf_wrong_at(r, place, values ? "values" : "do.sql",
                             "%s: the statement and its values do not fit each other, or one of them is none", r->path);
    else
        semel__conf_wrong_at(r, place, values ? "values" : "do.sql", "%s: %s", r->path, text);
}

/* Each by itself; false: not all are rules. */
static bool check_values(struct conf_reader *r, const struct semel_route *route, const struct conf_node *node)
{
    struct semel_error err;
    bool ok = true;
    for (size_t i = 0; i < route->values.n; i++)
        if (semel__sql_check_value(route->values.at[i], i, &err) != SEMEL_OK) {
            statement_wrong(r, node, err.text);
            ok = false;
        }
    return ok;
}

/* A store that is missing, or has a mistake, is of no kind. */
static bool store_is(const struct conf_reader *r, enum semel_conf_store kind)
{
    return semel__str_given(r->owned->conf.store) && r->owned->conf.store_kind == kind;
}

static void check_statement(struct conf_reader *r, const struct semel_route *route, const struct conf_node *node)
{
    bool lite = store_is(r, SEMEL_CONF_STORE_SQLITE);
    const struct semel_conf_sql *sql = &route->handler.u.sql;
    const struct semel_sql_desc desc = {
        .statement = sql->statement,
        .mode = sql->set ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = route->values.at,
        .n_values = route->values.n,
        .ordered = route->policy.order != SEMEL_ORDER_NONE,
    };
    struct semel_error err;
    const bool ok = check_values(r, route, node);
    if (!lite && !store_is(r, SEMEL_CONF_STORE_POSTGRES))
        return;
    if (semel__sql_check(&desc, lite ? SEMEL_SQL_SQLITE : SEMEL_SQL_POSTGRES, &err) != SEMEL_OK &&
        (ok || strncmp(err.text, "values, $", 9) != 0)) /* else it was reported */
        statement_wrong(r, node, err.text);
}

/* ==== how a check sees its settings =============================================================== */

struct subject {
    struct conf_reader *r;
    struct semel_route *route;
    const struct conf_node *node;
};

/* At the setting if it is given, else as near as possible. */
#define WRONG(l, below, ...) \
    semel__conf_wrong_at((l)->r, semel__conf_place((l)->r, semel__conf_find((l)->node, (below))), (below), __VA_ARGS__)

/* The settings below the route may be judged: "do.http" and so on, ended by NULL. */
static bool sound(const struct subject *l, const char *const *names)
{
    while (*names != NULL && semel__conf_sound(l->node, *names))
        names++;
    return *names == NULL;
}

#define SOUND(l, ...) sound((l), (const char *const[]){__VA_ARGS__, NULL})

/* How a kind of source sees its own settings below "from" in the node of its route; the reader's path is the route's.
 * */
struct conf_check {
    struct semel_setting_check base;
    struct conf_reader *r;
    const struct conf_node *node;
    const char *below; /* from, do, admin: a key of the node */
    char path[CONF_PATH_MAX + 100];
};

static const struct conf_check *check_of(const struct semel_setting_check *check)
{
    return (const struct conf_check *)check;
}

/* The node of a setting, or the deepest that there is on the way to it. */
static const struct conf_node *node_of(const struct semel_setting_check *check, const char *setting, char *below,
                                       size_t size)
{
    snprintf(below, size, "%s.%s", check_of(check)->below, setting);
    return semel__conf_find(check_of(check)->node, below);
}

static bool check_given(const struct semel_setting_check *check, const char *setting)
{
    char below[128];
    const struct conf_node *node = node_of(check, setting, below, sizeof(below));
    const char *last = strrchr(setting, '.');
    return semel__str_given(node->key) && semel__str_eqz(node->key, last != NULL ? last + 1 : setting);
}

static void check_show(const struct semel_setting_check *check, const char *setting, char *out, size_t size)
{
    char below[128];
    semel__conf_show(node_of(check, setting, below, sizeof(below)), out, size);
}

static void check_put(const struct semel_setting_check *check, const char *setting, struct semel_buf *buf)
{
    char below[128];
    (void)node_of(check, setting, below, sizeof(below));
    put_said(buf, check_of(check)->node, below);
}

static const char *check_keep(const struct semel_setting_check *check, const char *text)
{
    struct conf_reader *r = check_of(check)->r;
    struct semel_str kept = {NULL, 0};
    r->failed |= !semel__arena_copy(&r->owned->arena, semel__str(text), &kept);
    return kept.p;
}

static void check_wrong(const struct semel_setting_check *check, const char *setting, const char *text)
{
    struct conf_reader *r = check_of(check)->r;
    char below[128];
    const struct conf_node *node = node_of(check, setting, below, sizeof(below));
    semel__conf_wrong_at(r, semel__conf_place(r, node), below, "%s", text);
}

static void check_init(struct conf_check *check, struct conf_reader *r, const struct semel_route *route,
                       const struct conf_node *node, const char *below)
{
    *check = (struct conf_check){
        .base = {.path = check->path,
                 .route = route != NULL ? route->name : (struct semel_str){0},
                 .transactional = route != NULL && route->handler.kind == SEMEL_DO_SQL,
                 .given = check_given,
                 .show = check_show,
                 .put = check_put,
                 .keep = check_keep,
                 .wrong = check_wrong},
        .r = r,
        .node = node,
        .below = below,
    };
    snprintf(check->path, sizeof(check->path), "%s%s%s", r->path, r->path[0] != '\0' ? "." : "", below);
}

bool semel__source_stores_positions(const struct semel_source *from)
{
    return from->kind->stores_positions != NULL && from->kind->stores_positions(from->options);
}

const struct semel_listen_options *semel__route_listens(const struct semel_route *route)
{
    return (route->from.kind->flags & SEMEL_KIND_SERVED) != 0 ? route->from.options : NULL;
}

bool semel__route_stored(const struct semel_route *route)
{
    return (route->from.kind->flags & SEMEL_KIND_STORED) != 0;
}

/* ==== the promise ===================================================================================
 *
 * The guarantee, what the order rests on, whether the memory covers the horizon (I18), and the reviewer's checklist,
 * answered: all of it follows from the settings.
 *
 * The label: ATOMIC where the effect is in the transaction of the record, GUARDED where it is outside. It is bounded
 * ("ATOMIC for 45 days") when a copy that comes after its record was purged would run again: nothing says how old a
 * message is, no business key is kept for ever, and there are no versions. core/policy.h has the words.
 *
 * Invariants: the label is never better than what the settings say; what only the producers know (ids that carry their
 * time) counts when it was said. A retention below the horizon is refused, never labelled.
 */

struct asked {
    struct conf_reader *r;
    struct semel_route *route;
    const struct conf_node *node;
};

static const char *const rests_names[] = {"none", "source", "versions"};
#define X(name, text) text,
static const char *const checklist_names[] = {SEMEL_CHECKLIST_MAP(X)};
#undef X

const char *semel__order_rests_name(enum semel_order_rests rests)
{
    return rests_names[rests];
}

const char *semel__checklist_name(enum semel_checklist item)
{
    return checklist_names[item];
}

static void put_time(struct semel_buf *buf, int64_t us)
{
    char text[32];
    semel__duration_format(us, text, sizeof(text));
    semel__buf_addz(buf, us == SEMEL_NONE ? "for ever" : text);
}

static void keep(const struct asked *a, struct semel_buf *buf, struct semel_str *ret)
{
    a->r->failed |= buf->failed || !semel__arena_copy(&a->r->owned->arena, semel__buf_str(buf), ret);
    semel__buf_done(buf);
}

/* ---- the horizon --------------------------------------------------------------------------------- */

static bool age_known(const struct semel_route *route)
{
    return route->rules.timed || route->rules.time.kind != SEMEL_RULE_DEFAULT;
}

const char *semel__route_lasting(const struct semel_route *route)
{
    if (age_known(route)) /* the first and the second are what the stored settings tell, too */
        return "the age of every message is known, so that one from before the last purge is quarantined";
    if (route->policy.order == SEMEL_ORDER_VERSION)
        return "versions tell an old message from a new one";
    if (route->rules.n_business > 0 && route->policy.business_retention_us == SEMEL_NONE)
        return "business keys are kept for ever";
    return NULL;
}

static void put_horizon(struct semel_buf *buf, const struct semel_horizon *horizon)
{
    const struct {
        const char *name;
        int64_t us;
    } parts[] = {
        {"broker", horizon->broker_us}, {"outbox", horizon->outbox_lag_us},
        {"outage", horizon->outage_us}, {"dead letters", horizon->dead_letter_us},
        {"margin", horizon->margin_us},
    };
    bool any = false;
    for (size_t i = 0; i < CONF_COUNT(parts); i++) {
        if (parts[i].us == 0)
            continue;
        semel__buf_addf(buf, "%s%s ", any ? " + " : "", parts[i].name);
        put_time(buf, parts[i].us);
        any = true;
    }
    if (horizon->legal_us > 0) {
        semel__buf_addz(buf, any ? ", at least " : "at least ");
        put_time(buf, horizon->legal_us);
    }
    if (!any && horizon->legal_us == 0)
        semel__buf_addz(buf, "at least 1h");
}

/* The figure that would do, without odd microseconds. */
static void put_enough(struct semel_buf *buf, int64_t need_us)
{
    const int64_t hour = SEMEL_HORIZON_MIN_US;
    put_time(buf, need_us % hour == 0 ? need_us : (need_us / hour + 1) * hour);
}

static void refuse_retention(const struct asked *a)
{
    struct semel_buf buf;
    const struct conf_node *place = semel__conf_find(a->node, "keep.completed");
    semel__buf_init(&buf, 1024);
    semel__buf_addf(&buf, "%s.keep.completed is ", a->r->path);
    put_time(&buf, a->route->policy.retention_us);
    semel__buf_addz(&buf, ", shorter than the horizon (");
    put_horizon(&buf, &a->route->horizon);
    semel__buf_addz(&buf, "): a duplicate could come back after its record was purged; ");
    put_enough(&buf, semel__horizon_us(&a->route->horizon));
    semel__buf_addz(&buf, " would do");
    semel__buf_add(&buf, "", 1);
    if (!semel__str_eqz(place->key, "completed"))
        place = semel__conf_find(a->node, "horizon");
    a->r->failed |= buf.failed;
    if (!buf.failed)
        semel__conf_wrong_at(a->r, semel__conf_place(a->r, place), "keep.completed", "%s", buf.p);
    semel__buf_done(&buf);
}

/* I18. A source that keeps for ever has no figure that would do. Of a route with other mistakes, too. */
static void check_horizon(const struct asked *a)
{
    struct semel_route *route = a->route;
    route->promise.horizon_us = SEMEL_NONE;
    if (route->horizon.broker_us == SEMEL_NONE) {
        if (semel__route_lasting(route) == NULL)
            semel__conf_wrong_at(
                a->r, semel__conf_place(a->r, semel__conf_find(a->node, "horizon.broker")), "horizon.broker",
                "%s.horizon.broker is forever, and no retention covers that; the route needs versions, "
                "a business key kept for ever, a `time` rule or timed_ids",
                a->r->path);
        return;
    }
    route->promise.horizon_us = semel__horizon_us(&route->horizon);
    if (semel__retention_check(route->policy.retention_us, &route->horizon, NULL) != SEMEL_OK)
        refuse_retention(a);
}

/* ---- the label and the order --------------------------------------------------------------------- */

const char *semel__gateway_guarantee(const struct semel_conf_gateway *gateway)
{
    return gateway->guarantee == SEMEL_GUARANTEE_ATOMIC ? "ATOMIC" : "GUARDED";
}

static void label(const struct asked *a)
{
    struct semel_promise *promise = &a->route->promise;
    bool atomic = a->route->policy.effect == SEMEL_EFFECT_ATOMIC;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    promise->guarantee = atomic ? SEMEL_GUARANTEE_ATOMIC : SEMEL_GUARANTEE_GUARDED;
    promise->label = semel__policy_guarantee(&a->route->policy, semel__route_lasting(a->route) != NULL);
    if (semel__route_lasting(a->route) == NULL) {
        promise->guarantee = SEMEL_GUARANTEE_BOUNDED;
        semel__buf_addz(&buf,
                        "its record is kept that long; a copy that comes later runs again, because nothing says how "
                        "old a message is: set timed_ids or `time` if something does");
    } else if (atomic)
        semel__buf_addz(&buf, "effect and record are committed in one transaction");
    else
        semel__buf_addf(&buf, "the effect is outside: a lease, a fencing token and a stable key; %s",
                        a->route->policy.effect == SEMEL_EFFECT_KEYED ? "an unknown outcome is repeated under its key"
                                                                      : "an unknown outcome is asked for, or waits");
    keep(a, &buf, &promise->why);
}

static void order(const struct asked *a)
{
    struct semel_promise *promise = &a->route->promise;
    const char *text = semel__route_stored(a->route)
                           ? "no order is asked for: order keys of stored messages count with `order: stored` only"
                           : "no order is asked for";
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    promise->order = SEMEL_ORDER_RESTS_NONE;
    if (a->route->policy.order == SEMEL_ORDER_ARRIVAL) {
        bool ordered = false;
        text = a->route->from.kind->order(a->route->from.options, &ordered);
        promise->order = ordered ? SEMEL_ORDER_RESTS_SOURCE : SEMEL_ORDER_RESTS_NONE;
    }
    if (a->route->policy.order == SEMEL_ORDER_VERSION) {
        promise->order = SEMEL_ORDER_RESTS_VERSIONS;
        text = "the versions in the messages, whatever order they come in";
    }
    if (a->route->policy.order == SEMEL_ORDER_NONE)
        semel__buf_addz(&buf, text);
    else {
        semel__buf_addz(&buf, "per ");
        if (semel__route_stored(a->route))
            semel__buf_addz(&buf, "the order key that is stored");
        else
            put_said(&buf, a->node, "order");
        semel__buf_addf(&buf, ": it rests on %s", text);
    }
    keep(a, &buf, &promise->answers[SEMEL_CHECKLIST_ORDER]);
}

/* ---- the other answers --------------------------------------------------------------------------- */

/* May anybody who has a signed request of this route give it another id? */
static bool id_is_unsigned(const struct semel_route *route)
{
    const struct semel_listen_options *listen = semel__route_listens(route);
    const struct semel_rule *id = &route->rules.id;

    if (listen == NULL || !listen->signature.on || id->kind == SEMEL_RULE_JSON || id->kind == SEMEL_RULE_DIGEST)
        return false;
    return id->kind != SEMEL_RULE_HEADER || !semel__signature_signs(&listen->signature, id->name);
}

static void answer_key(const struct asked *a)
{
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addz(&buf, a->route->policy.one_source ? "consumer and id" : "consumer, source and id");
    semel__buf_addz(&buf, "; the id is ");
    if (semel__route_stored(a->route))
        semel__buf_addz(&buf, "the one that the message was stored with");
    else if (a->route->rules.id.kind == SEMEL_RULE_DEFAULT)
        semel__buf_addz(&buf, "ce_id, id, message_id or webhook-id, whichever comes first");
    else if (semel__str_eqz(semel__conf_find(a->node, "id")->key, "id"))
        put_said(&buf, a->node, "id");
    else { /* the source implies it */
        const char *id = NULL, *ignored = NULL;
        a->route->from.kind->rules(a->route->from.options, &id, &ignored, &ignored);
        semel__buf_addz(&buf, id);
    }
    if (a->route->rules.id.kind == SEMEL_RULE_POSITION)
        semel__buf_addz(&buf, ", which is another one when a producer sends twice");
    if (a->route->rules.id.kind == SEMEL_RULE_DIGEST)
        semel__buf_addz(&buf, ", so two events with one payload are one");
    if (id_is_unsigned(a->route))
        semel__buf_addz(&buf, "; it is not signed: who has a signed request can send it again under another id");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_KEY]);
}

static void answer_business(const struct asked *a)
{
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    if (a->route->rules.n_business == 0)
        semel__buf_addz(&buf, "none: a new id with an old intent runs again");
    else {
        put_said(&buf, a->node, "business_key");
        semel__buf_addz(&buf, ", kept ");
        put_time(&buf, a->route->policy.business_retention_us);
    }
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_BUSINESS]);
}

static void answer_connection(const struct asked *a)
{
    struct conf_check check;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    check_init(&check, a->r, a->route, a->node, "from");
    a->route->from.kind->connection(a->route->from.options, &check.base, &buf);
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_CONNECTION]);
}

static void answer_store(const struct asked *a)
{
    const struct semel_conf *conf = &a->r->owned->conf;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addf(&buf, "%s, ", conf->store_kind == SEMEL_CONF_STORE_SQLITE ? "SQLite" : "PostgreSQL");
    put_shown(&buf, conf->store_said);
    if (conf->store_plain)
        semel__buf_addz(&buf, ", whose certificate need not be checked: store_plain is true");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_STORE]);
}

static void answer_transaction(const struct asked *a)
{
    bool atomic = a->route->policy.effect == SEMEL_EFFECT_ATOMIC;
    bool offsets = semel__source_stores_positions(&a->route->from);
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addz(&buf, atomic ? "yes: the statement runs in the transaction that writes the record"
                                 : "no: a committed claim before the effect, a second transaction after it");
    semel__buf_addz(&buf, offsets ? ", and the offset is stored there too" : "");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_TRANSACTION]);
}

static void answer_retention(const struct asked *a)
{
    const char *last = semel__route_lasting(a->route);
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    put_time(&buf, a->route->policy.retention_us);
    semel__buf_addz(&buf, " against a horizon of ");
    if (a->route->promise.horizon_us == SEMEL_NONE)
        semel__buf_addz(&buf, "for ever");
    else {
        put_time(&buf, a->route->promise.horizon_us);
        semel__buf_addz(&buf, " (");
        put_horizon(&buf, &a->route->horizon);
        semel__buf_addz(&buf, ")");
    }
    semel__buf_addf(&buf, "; %s", last != NULL ? last : "after that a copy runs again");
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_RETENTION]);
}

static void put_unknown(const struct asked *a, struct semel_buf *buf, bool reconcile)
{
    if (reconcile) {
        semel__buf_addz(buf, "; an unknown outcome is asked for at ");
        put_said(buf, a->node, "do.reconcile");
    } else if (a->route->policy.effect == SEMEL_EFFECT_KEYED)
        semel__buf_addz(buf, "; an unknown outcome is repeated under the same key");
    else
        semel__buf_addz(buf, "; an unknown outcome waits for a person");
}

/* What a 5xx is taken for, and why. */
static void put_5xx(const struct asked *a, struct semel_buf *buf)
{
    const struct semel_conf_http *http = &a->route->handler.u.http;
    if (http->idempotent) {
        semel__buf_addz(buf, "; a 5xx is repeated, because the other side honours the key");
        return;
    }
    semel__buf_addz(buf, "; a 5xx is an unknown outcome, because it may come after the effect");
    if (http->transient.n > 0) {
        semel__buf_addz(buf, ", but ");
        put_said(buf, a->node, "do.transient");
        semel__buf_addz(buf, ", after which nothing was done, as do.transient says");
    }
    semel__buf_addz(buf, http->transient.n > 0 ? ", and but where the answer has Semel-Outcome"
                                               : ", unless the answer has Semel-Outcome, or do.transient lists it");
}

static void answer_outside(const struct asked *a)
{
    const struct semel_do *handler = &a->route->handler;
    struct semel_buf buf;
    semel__buf_init(&buf, 2048);
    switch (handler->kind) {
    case SEMEL_DO_SQL:
        semel__buf_addz(&buf, "none");
        break;
    case SEMEL_DO_HTTP:
        semel__buf_addz(&buf, "POST ");
        put_said(&buf, a->node, "do.http");
        semel__buf_addz(&buf, " with Idempotency-Key, the same on every retry");
        if (handler->u.http.plain)
            semel__buf_addz(&buf, "; without TLS, as do.plain says: messages can be read on the network");
        put_5xx(a, &buf);
        put_unknown(a, &buf, semel__str_given(handler->u.http.reconcile));
        break;
    case SEMEL_DO_EXEC:
        semel__buf_addz(&buf, "runs ");
        put_said(&buf, a->node, "do.exec");
        semel__buf_addz(&buf, " with SEMEL_KEY, the same on every retry");
        put_unknown(a, &buf, handler->u.exec.reconcile.n > 0);
        break;
    case SEMEL_DO_PULL:
        semel__buf_addz(&buf, "whatever the workers do, with the step key that they are given");
        put_unknown(a, &buf, false);
        break;
    }
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_OUTSIDE]);
}

static void answer_failures(const struct asked *a)
{
    const struct semel_policy *policy = &a->route->policy;
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    semel__buf_addf(&buf, "%d attempt%s, with pauses up to ", policy->retry_max, policy->retry_max == 1 ? "" : "s");
    put_time(&buf, policy->retry_ceiling_us);
    semel__buf_addf(&buf, ", then a dead letter; a permanent failure after %d; %lld failures in a row stop the route",
                    policy->permanent_max, (long long)a->route->breaker.failures);
    if (policy->effect == SEMEL_EFFECT_OUTSIDE)
        semel__buf_addf(&buf, ", and %lld unknown outcomes keep it from taking new messages",
                        (long long)a->route->unknown_max);
    keep(a, &buf, &a->route->promise.answers[SEMEL_CHECKLIST_FAILURES]);
}

static void promise(struct conf_reader *r, struct semel_route *route, const struct conf_node *node)
{
    static void (*const answers[])(const struct asked *) = {
        label,
        order,
        answer_key,
        answer_business,
        answer_connection,
        answer_store,
        answer_transaction,
        answer_retention,
        answer_outside,
        answer_failures,
    };
    const struct asked a = {r, route, node};
    check_horizon(&a);
    for (size_t i = 0; i < CONF_COUNT(answers) && !r->failed; i++)
        answers[i](&a);
}

/* ==== a route ===================================================================================== */

/* ---- handlers ------------------------------------------------------------------------------------ */

static void check_headers(const struct subject *l)
{
    static const char *const secret[] = {"authorization", "proxy-authorization", "cookie", "x-api-key"};
    const struct conf_node *headers = semel__conf_find(l->node, "do.headers");
    if (headers->shape != CONF_MAPPING || !semel__str_eqz(headers->key, "headers"))
        return;
    for (const struct conf_node *each = headers->first; each != NULL; each = each->next)
        for (size_t i = 0; i < CONF_COUNT(secret) && !each->outside; i++)
            if (semel__same_word(each->key, secret[i]))
                semel__conf_wrong_at(l->r, semel__conf_place(l->r, each), "do.headers",
                                     "%s.do.headers: %s is a secret, which must not stand in the file; write ${NAME} "
                                     "for a variable of the environment",
                                     l->r->path, secret[i]);
}

/* A name in braces that is not replaced would be sent with its braces, which no URL may have. */
static void check_braces(const struct subject *l, struct semel_str url)
{
    static const char *const names[] = {"{key}", "{id}"};
    for (size_t i = 0; i < url.n; i++) {
        size_t k = 0, n = 1;
        if (url.p[i] != '{' && url.p[i] != '}')
            continue;
        while (k < CONF_COUNT(names) && (n = strlen(names[k]), n > url.n - i || memcmp(url.p + i, names[k], n) != 0))
            k++;
        if (k == CONF_COUNT(names)) {
            WRONG(l, "do.reconcile",
                  "%s.do.reconcile: only {key} and {id} are replaced; write %%7B and %%7D for braces", l->r->path);
            return;
        }
        i += n - 1;
    }
}

/* Up to its path a URL says who is asked; no message says that. */
static void check_reconcile(const struct subject *l, struct semel_str url)
{
    size_t host = 0, slashes = 0;
    while (host < url.n && (url.p[host] != '/' || ++slashes < 3) && strchr("?#", url.p[host]) == NULL)
        host++;
    if (host > 0 && memchr(url.p, '{', host) != NULL)
        WRONG(l, "do.reconcile",
              "%s.do.reconcile has {key} or {id} in its host; they can stand in the path and behind it", l->r->path);
    else if (url.n > 0 && memchr(url.p, '#', url.n) != NULL)
        WRONG(
            l, "do.reconcile",
            "%s.do.reconcile has a # in it, and what stands behind that is not sent: every message would be asked for "
            "at one URL; leave it out, or write %%23",
            l->r->path);
    else
        check_braces(l, url);
}

static void check_transient(const struct subject *l, const struct semel_conf_http *http)
{
    for (size_t i = 0; i < http->transient.n; i++) {
        int64_t status;
        if (!semel__str_int64(http->transient.at[i], &status) || status < 500 || status > 599) {
            WRONG(l, "do.transient", "%s.do.transient: statuses of 500 to 599 are listed there, such as [503]",
                  l->r->path);
            return;
        }
    }
    if (http->transient.n > 0 && http->idempotent)
        WRONG(l, "do.transient",
              "%s.do.transient is given, but with `idempotent: true` every 5xx is repeated; remove one of them",
              l->r->path);
}

bool semel__conf_exposed(struct semel_str url)
{
    struct semel_str host, port;
    if (!semel__str_given(url) || !semel__setting_scheme(url, "http"))
        return false;
    semel__url_host(url, &host, &port);
    return !semel__host_is_local(host);
}

/* A fake server would get the messages, and its answers would be believed. */
static void check_plain(const struct subject *l, const char *below, struct semel_str url)
{
    if (semel__conf_exposed(url))
        WRONG(l, below, "%s.%s calls another host without TLS; use https:, or set do.plain: true", l->r->path, below);
}

static void check_http(const struct subject *l, const struct conf_check *check, struct semel_conf_http *http)
{
    if (SOUND(l, "do.headers"))
        check_headers(l);
    if (SOUND(l, "do.reconcile"))
        check_reconcile(l, http->reconcile);
    if (SOUND(l, "do.transient", "do.idempotent"))
        check_transient(l, http);
    if (SOUND(l, "do.http", "do.tls"))
        semel__setting_check_tls_url(&check->base, "http", http->url, &http->tls);
    if (!http->plain && SOUND(l, "do.http", "do.plain"))
        check_plain(l, "do.http", http->url);
    if (!http->plain && SOUND(l, "do.reconcile", "do.plain"))
        check_plain(l, "do.reconcile", http->reconcile);
}

static void check_handler(const struct subject *l)
{
    struct semel_do *handler = &l->route->handler;
    struct conf_check check;
    check_init(&check, l->r, l->route, l->node, "do");
    switch (handler->kind) {
    case SEMEL_DO_SQL:
        if (handler->u.sql.set && store_is(l->r, SEMEL_CONF_STORE_SQLITE))
            WRONG(l, "do.set", "%s.do.set needs PostgreSQL, and the store is SQLite; leave it out", l->r->path);
        else
            check_statement(l->r, l->route, l->node);
        return;
    case SEMEL_DO_HTTP:
        check_http(l, &check, &handler->u.http);
        break;
    case SEMEL_DO_EXEC:
        break;
    case SEMEL_DO_PULL:
        if (SOUND(l, "do.path"))
            semel__setting_check_path(&check.base, &handler->u.pull.path);
        if (SOUND(l, "do.pull", "do.tls", "do.plain"))
            semel__setting_check_reach(&check.base, "pull", &handler->u.pull.server);
        break;
    }
    if (l->route->values.n > 0)
        WRONG(l, "values", "%s.values are for a statement, and `do` has none; leave them out", l->r->path);
}

/* ---- the route ----------------------------------------------------------------------------------- */

/* A message that is stored has its fields; a rule can only say that they are used. */
static void check_stored(const struct subject *l)
{
    const struct semel_rules *rules = &l->route->rules;
    const bool stored = semel__route_stored(l->route);
    const struct {
        const char *name;
        const struct semel_rule *rule;
        bool usable; /* `stored` has a meaning */
    } all[] = {
        {"id", &rules->id, false},
        {"type", &rules->type, false},
        {"order", &rules->order, true},
        {"version", &rules->version, true},
        {"time", &rules->time, false},
        {"lock_key", &rules->lock, false},
        {"business_key", &rules->business[0], true},
    };
    for (size_t i = 0; i < CONF_COUNT(all); i++) {
        bool says = all[i].rule->kind == SEMEL_RULE_STORED;
        if (all[i].rule->kind == SEMEL_RULE_DEFAULT || (stored && says && all[i].usable))
            continue;
        if (stored && all[i].usable)
            WRONG(l, all[i].name, "%s.%s: messages of the inbox have theirs already; write `%s: stored`", l->r->path,
                  all[i].name, all[i].name);
        else if (stored)
            WRONG(l, all[i].name, "%s.%s: messages of the inbox are stored with theirs; leave it out", l->r->path,
                  all[i].name);
        else if (says)
            WRONG(l, all[i].name, "%s.%s is stored, which is for `from: inbox`; say where it is in a message",
                  l->r->path, all[i].name);
    }
    if (stored && !l->node->tainted && l->route->policy.keep == SEMEL_KEEP_NEVER)
        WRONG(l, "keep.payload", "%s.keep.payload is never, but a message of the inbox can only run from its payload",
              l->r->path);
    for (size_t i = 1; i < rules->n_business; i++)
        if (stored || rules->business[i].kind == SEMEL_RULE_STORED) {
            WRONG(l, "business_key", "%s.business_key: `stored` stands alone, and only with `from: inbox`", l->r->path);
            return;
        }
}

static void check_rules(const struct subject *l)
{
    const struct semel_rules *rules = &l->route->rules;
    bool positions = (l->route->from.kind->flags & SEMEL_KIND_POSITIONS) != 0;
    if (rules->version.kind != SEMEL_RULE_DEFAULT && rules->order.kind == SEMEL_RULE_DEFAULT)
        WRONG(l, "version", "%s.version orders the messages of a key, and there is no `order` that says which key",
              l->r->path);
    if (rules->id.kind == SEMEL_RULE_POSITION && !positions)
        WRONG(l, "id", "%s.id is position, which only Kafka gives; say where the id is, or digest", l->r->path);
    check_stored(l);
}

static void check_breaker(const struct subject *l)
{
    const struct semel_conf_breaker *breaker = &l->route->breaker;
    if (breaker->ceiling_us < breaker->first_us)
        WRONG(l, "breaker.ceiling", "%s.breaker.ceiling is below breaker.first; it must be at least as long",
              l->r->path);
}

/* What the source implies, where the route sets nothing. */
static void imply_rules(struct semel_route *route)
{
    const char *id = NULL, *type = NULL, *count = NULL;
    struct semel_error ignored;
    if (route->from.kind->rules == NULL)
        return;
    route->from.kind->rules(route->from.options, &id, &type, &count);
    if (count != NULL)
        route->rules.count = semel__str(count);
    if (id != NULL && route->rules.id.kind == SEMEL_RULE_DEFAULT)
        semel__rule_parse(semel__str(id), &route->rules.id, &ignored);
    if (type != NULL && route->rules.type.kind == SEMEL_RULE_DEFAULT)
        semel__rule_parse(semel__str(type), &route->rules.type, &ignored);
}

/* Is it there, and has no mistake? */
static bool is_sound(const struct conf_node *route, const char *name)
{
    for (const struct conf_node *child = route->first; child != NULL; child = child->next)
        if (semel__str_eqz(child->key, name))
            return !child->tainted && !child->bad;
    return false;
}

/* Of a route with mistakes: what has none is checked, so that one pass shows all that is certain. What follows from
 * several settings is checked where none of them has a mistake. */
static void check_partly(const struct subject *l)
{
    const bool known = l->route->from.kind != NULL, from = known && is_sound(l->node, "from");
    const bool values = semel__conf_sound(l->node, "values");
    const struct semel_listen_options *listen = known ? semel__route_listens(l->route) : NULL;
    struct conf_check check;
    check_init(&check, l->r, l->route, l->node, "from");
    if (from)
        l->route->from.kind->check(l->route->from.options, &check.base);
    else if (listen != NULL && SOUND(l, "from.listen", "from.tls", "from.plain"))
        semel__setting_check_reach(&check.base, "listen", &listen->server);
    if (l->route->handler.kind != SEMEL_DO_SQL || (is_sound(l->node, "do") && values))
        check_handler(l);
    else if (values && semel__str_given(l->route->handler.u.sql.statement))
        (void)check_values(l->r, l->route, l->node);
    if (from && SOUND(l, "id", "type", "order", "version", "time", "lock_key", "business_key"))
        check_rules(l);
    if (is_sound(l->node, "breaker"))
        check_breaker(l);
    l->route->rules.timed = l->route->policy.timed_ids == SEMEL_TIMED_ALL;
    if (SOUND(l, "keep.completed", "keep.business", "horizon", "timed_ids", "time", "order", "version", "business_key"))
        check_horizon(&(struct asked){l->r, l->route, l->node});
}

void semel__conf_route(struct conf_reader *r, struct semel_route *route, const struct conf_node *node)
{
    const struct subject l = {r, route, node};
    struct conf_check check;
    if (node->tainted) {
        check_partly(&l);
        return;
    }
    check_init(&check, r, route, node, "from");
    route->rules.timed = route->policy.timed_ids == SEMEL_TIMED_ALL;
    route->from.kind->check(route->from.options, &check.base);
    imply_rules(route);
    check_handler(&l);
    check_rules(&l);
    check_breaker(&l);
    if (!r->failed)
        promise(r, route, node);
}

/* ---- between routes ------------------------------------------------------------------------------ */

static bool sources_meet(const struct semel_source *a, const struct semel_source *b)
{
    return a->kind == b->kind && a->kind->same_queue != NULL && a->kind->same_queue(a->options, b->options);
}

/* Where a route listens. One for `pull` has its four calls below the path, and nothing at the path itself. */
struct endpoint {
    const char *below;
    const struct semel_setting_server *server;
    struct semel_str path;
    bool pull;
};

static size_t endpoints_of(const struct semel_route *route, struct endpoint out[2])
{
    const struct semel_listen_options *listen = semel__route_listens(route);
    size_t n = 0;
    if (listen != NULL)
        out[n++] = (struct endpoint){"from.listen", &listen->server, listen->path, false};
    if (route->handler.kind == SEMEL_DO_PULL)
        out[n++] = (struct endpoint){"do.pull", &route->handler.u.pull.server, route->handler.u.pull.path, true};
    return n;
}

static bool same_address(const struct semel_setting_server *a, const struct semel_setting_server *b)
{
    return semel__str_eq(a->address.where, b->address.where);
}

static bool same_hosts(const struct semel_setting_list *a, const struct semel_setting_list *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = semel__str_eq(a->at[i], b->at[i]);
    return same;
}

static bool same_text(const char *a, const char *b)
{
    return semel__str_eq(semel__str(a), semel__str(b));
}

static bool same_server(const struct semel_setting_server *a, const struct semel_setting_server *b)
{
    return a->plain == b->plain && a->tls.on == b->tls.on && same_hosts(&a->hosts, &b->hosts) &&
           same_text(a->tls.cert_file, b->tls.cert_file) && same_text(a->tls.key_file, b->tls.key_file) &&
           same_text(a->tls.client_ca_file, b->tls.client_ca_file);
}

/* Is `path` that of a call of this one? */
static bool is_call(const struct endpoint *endpoint, struct semel_str path)
{
    static const char *const calls[] = {"/take", "/renew", "/settle", "/release"};
    size_t n = endpoint->path.n;
    if (!endpoint->pull || path.n <= n || memcmp(path.p, endpoint->path.p, n) != 0)
        return false;
    for (size_t i = 0; i < CONF_COUNT(calls); i++)
        if (semel__str_eqz((struct semel_str){path.p + n, path.n - n}, calls[i]))
            return true;
    return false;
}

static void compare_endpoints(const struct subject *l, const struct endpoint *a, const struct endpoint *b,
                              const char *other)
{
    if (!same_address(a->server, b->server))
        return;
    if ((!a->pull && is_call(b, a->path)) || (!b->pull && is_call(a, b->path)))
        WRONG(l, a->below,
              "%s.%s and %s.%s share an address, and the path of one is a call of the other, which pulls; "
              "give one of them another path",
              l->r->path, a->below, other, b->below);
    else if (a->pull == b->pull && semel__str_eq(a->path, b->path))
        WRONG(l, a->below, "%s.%s has the address and the path of %s.%s; give one of them another path", l->r->path,
              a->below, other, b->below);
    else if (!same_server(a->server, b->server))
        WRONG(l, a->below, "%s.%s has the address of %s.%s, but not its tls, plain and hosts; they must be the same",
              l->r->path, a->below, other, b->below);
}

/* Compares the endpoints of one route: where messages come in, and where they are pulled. */
static void compare_own(const struct subject *l)
{
    struct endpoint ours[2];
    if (endpoints_of(l->route, ours) == 2)
        compare_endpoints(l, &ours[1], &ours[0], l->r->path);
}

static void compare(const struct subject *l, const struct semel_route *before)
{
    struct endpoint ours[2], theirs[2];
    char other[128];
    size_t n = endpoints_of(l->route, ours), m = endpoints_of(before, theirs);
    int length = snprintf(other, sizeof(other), "routes.");
    semel__str_show(other + length, sizeof(other) - (size_t)length, before->name);
    if (sources_meet(&l->route->from, &before->from))
        WRONG(l, "from", "%s reads from the same queue as %s: each would get only a part of the messages; %s",
              l->r->path, other, l->route->from.kind->apart);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < m; k++)
            compare_endpoints(l, &ours[i], &theirs[k], other);
}

static void check_admin(struct conf_reader *r, const struct semel_route *route)
{
    const struct semel_conf_admin *admin = &r->owned->conf.admin;
    struct endpoint endpoints[2];
    char name[101];
    size_t n = admin->on ? endpoints_of(route, endpoints) : 0;
    semel__str_show(name, sizeof(name), route->name);
    size_t i = 0;
    while (i < n && !same_address(endpoints[i].server, &admin->server))
        i++;
    if (i < n)
        semel__conf_wrong_at(r, semel__conf_place(r, semel__conf_find(r->tree, "admin.listen")), "admin.listen",
                             "admin.listen is the address of routes.%s.%s; give it one of its own", name,
                             endpoints[i].below);
}

const char *semel__conf_listens(const struct conf_reader *r, const struct semel_setting_server *server, char *out,
                                size_t size)
{
    const struct semel_conf *conf = &r->owned->conf;
    for (size_t i = 0; i < conf->n_routes && r->routes != NULL; i++) {
        struct endpoint endpoints[2];
        const size_t n = r->routes[i] != NULL ? endpoints_of(&conf->routes[i], endpoints) : 0;
        for (size_t k = 0; k < n; k++)
            if (same_address(endpoints[k].server, server)) {
                char name[101];
                semel__str_show(name, sizeof(name), conf->routes[i].name);
                snprintf(out, size, "routes.%s.%s", name, endpoints[k].below);
                return out;
            }
    }
    return NULL;
}

static void check_store(const struct subject *top)
{
#ifdef SEMEL_WITH_POSTGRES
    const struct semel_conf *conf = &top->r->owned->conf;
    if (!store_is(top->r, SEMEL_CONF_STORE_POSTGRES) || conf->store_plain || !semel__pg_exposed(conf->store.p, false))
        return;
    WRONG(top, "store",
          "store is on another host, and its certificate would not be checked: a fake server could take the password; "
          "add sslmode=verify-full to the URL, or set store_plain: true");
#else
    (void)top;
#endif
}

static void between_routes(struct conf_reader *r)
{
    struct semel_conf *conf = &r->owned->conf;
    const struct subject top = {r, NULL, r->tree};
    check_store(&top);
    if (conf->admin.on && semel__str_given(conf->admin.server.address.text)) {
        struct conf_check check;
        check_init(&check, r, NULL, r->tree, "admin");
        semel__setting_check_reach(&check.base, "listen", &conf->admin.server);
    }
    for (size_t i = 0; i < conf->n_routes && r->routes != NULL && !r->failed; i++) {
        const struct subject l = {r, &conf->routes[i], r->routes[i]};
        char name[101];
        if (l.node == NULL)
            continue;
        semel__str_show(name, sizeof(name), l.route->name);
        snprintf(r->path, sizeof(r->path), "routes.%s", name);
        compare_own(&l);
        for (size_t k = 0; k < i; k++)
            if (r->routes[k] != NULL)
                compare(&l, &conf->routes[k]);
        r->path[0] = '\0';
        check_admin(r, l.route);
    }
}

/* ---- outboxes ------------------------------------------------------------------------------------ */

static void keep_connection(struct conf_reader *r, struct semel_conf_outbox *outbox, const struct conf_check *check)
{
    struct semel_buf buf;
    semel__buf_init(&buf, 1024);
    outbox->to.kind->to_connection(outbox->to.options, &check->base, &buf);
    r->failed |= buf.failed || !semel__arena_copy(&r->owned->arena, semel__buf_str(&buf), &outbox->connection);
    semel__buf_done(&buf);
}

static void check_notify(const struct subject *l)
{
    if (store_is(l->r, SEMEL_CONF_STORE_SQLITE))
        WRONG(l, "notify", "%s.notify is for PostgreSQL; the relay of an SQLite file sees at once that it has changed",
              l->r->path);
    else if (store_is(l->r, SEMEL_CONF_STORE_POSTGRES) && strstr(l->r->owned->conf.store.p, "semel_pooler=1") != NULL)
        WRONG(l, "notify",
              "%s.notify hears nothing behind a transaction pooler; leave it out, or name the server itself in `store`",
              l->r->path);
}

/* May the value be part of a statement's text as it is? */
static bool is_plain_value(struct semel_str value)
{
    for (size_t i = 0; i < value.n; i++)
        if (!isalnum((unsigned char)value.p[i]) && strchr("_-.: ", value.p[i]) == NULL)
            return false;
    return value.n > 0 && value.n <= 100;
}

static void check_table(const struct subject *l, const struct semel_conf_outbox *outbox)
{
    const struct semel_relay_table *t = &outbox->table;
    const char *path = l->r->path;
    if (outbox->keep_us > 0 && SOUND(l, "keep"))
        WRONG(l, "keep",
              "%s.keep is for the store's outbox; a row of a mapped table is deleted, or marked by table.mark", path);
    if (outbox->notify)
        WRONG(l, "notify", "%s.notify is for the store's outbox, whose trigger sends notifications", path);
    if (!SOUND(l, "table"))
        return;
    if (semel__str_given(t->unmarked) != semel__str_given(t->marked))
        WRONG(l, "table", "%s.table has one of unmarked and marked, and needs both or none", path);
    if (semel__str_given(t->marked) && !semel__str_given(t->mark))
        WRONG(l, "table", "%s.table has values of a mark; table.mark must name the column", path);
    if (semel__str_given(t->marked) && semel__str_eq(t->marked, t->unmarked))
        WRONG(l, "table.marked", "%s.table.marked is the same as unmarked: an event would be published again and again",
              path);
    if (semel__str_given(t->unmarked) && !is_plain_value(t->unmarked))
        WRONG(l, "table.unmarked", "%s.table.unmarked must be 1 to 100 letters, digits, blanks and _ - . :", path);
    if (semel__str_given(t->marked) && !is_plain_value(t->marked))
        WRONG(l, "table.marked", "%s.table.marked must be 1 to 100 letters, digits, blanks and _ - . :", path);
    if (semel__str_given(t->mark) && (semel__str_eq(t->mark, t->order) || semel__str_eq(t->mark, t->id)))
        WRONG(l, "table.mark", "%s.table.mark must be a column of its own", path);
}

static void check_outbox(struct conf_reader *r, struct semel_conf_outbox *outbox, const struct conf_node *node)
{
    const struct subject l = {r, NULL, node};
    struct conf_check check;
    check_init(&check, r, NULL, node, "to");
    check.base.route = outbox->name;
    if (outbox->to.kind != NULL && SOUND(&l, "to")) {
        outbox->to.kind->to_check(outbox->to.options, &check.base);
        keep_connection(r, outbox, &check);
    }
    if (outbox->notify)
        check_notify(&l);
    if (outbox->lease_us < 2 * outbox->timeout_us && SOUND(&l, "lease", "timeout"))
        WRONG(&l, "lease", "%s.lease must be at least twice %s.timeout: a call must end before the lease does", r->path,
              r->path);
    if (outbox->first_us > outbox->ceiling_us && SOUND(&l, "retry.first", "retry.ceiling"))
        WRONG(&l, "retry.first", "%s.retry.first is longer than %s.retry.ceiling", r->path, r->path);
    if (semel__str_given(outbox->table.name))
        check_table(&l, outbox);
}

#define TABLE_NAME_MAX 512

/* A table's name without its quotes, with a NUL behind the schema. A name that is too long is cut. */
static struct semel_str unquote(struct semel_str name, char out[TABLE_NAME_MAX])
{
    size_t n = 0;
    bool quoted = false;
    for (size_t i = 0; i < name.n && n < TABLE_NAME_MAX; i++) {
        if (name.p[i] == '"' && quoted && i + 1 < name.n && name.p[i + 1] == '"')
            out[n++] = name.p[i++];
        else if (name.p[i] == '"')
            quoted = !quoted;
        else
            out[n++] = (char)(name.p[i] == '.' && !quoted ? '\0' : name.p[i]);
    }
    return (struct semel_str){out, n};
}

/* Two outboxes on one table, as far as the file can tell. A name without a schema may be that of any. */
static bool same_table(const struct semel_conf_outbox *a, const struct semel_conf_outbox *b)
{
    char texts[2][TABLE_NAME_MAX];
    const bool mapped = semel__str_given(a->table.name);
    if (!mapped || !semel__str_given(b->table.name))
        return mapped == semel__str_given(b->table.name);
    const struct semel_str one = unquote(a->table.name, texts[0]), other = unquote(b->table.name, texts[1]);
    const char *dot = one.n > 0 ? memchr(one.p, '\0', one.n) : NULL,
               *other_dot = other.n > 0 ? memchr(other.p, '\0', other.n) : NULL;
    if ((dot == NULL) == (other_dot == NULL))
        return semel__str_eq(one, other);
    const struct semel_str longer = dot != NULL ? one : other, shorter = dot != NULL ? other : one;
    dot = dot != NULL ? dot : other_dot;
    return semel__str_eq((struct semel_str){dot + 1, (size_t)(longer.p + longer.n - dot - 1)}, shorter);
}

/* Neither is judged by a table that has a mistake. */
static bool is_second(const struct conf_reader *r, size_t first, size_t second)
{
    const struct conf_node *a = r->outboxes[first], *b = r->outboxes[second];
    return a != NULL && semel__conf_sound(a, "table") && semel__conf_sound(b, "table") &&
           same_table(&r->owned->conf.outboxes[first], &r->owned->conf.outboxes[second]);
}

static void check_outboxes(struct conf_reader *r)
{
    struct semel_conf *conf = &r->owned->conf;
    for (size_t i = 0; i < conf->n_outboxes && !r->failed; i++) {
        char name[101];
        if (r->outboxes[i] == NULL)
            continue;
        semel__str_show(name, sizeof(name), conf->outboxes[i].name);
        snprintf(r->path, sizeof(r->path), "outboxes.%s", name);
        size_t k = 0;
        while (k < i && !is_second(r, k, i))
            k++;
        if (k == i)
            check_outbox(r, &conf->outboxes[i], r->outboxes[i]);
        else if (!semel__str_given(conf->outboxes[i].table.name))
            semel__conf_wrong(
                r, r->outboxes[i]->key_place,
                "%s is a second relay of the store's outbox; one `to` with a list of destinations is right", r->path);
        else
            semel__conf_wrong(
                r, r->outboxes[i]->key_place,
                "%s is a second relay of the table of outboxes.%.*s; one `to` with a list of destinations "
                "is right",
                r->path, (int)conf->outboxes[k].name.n, conf->outboxes[k].name.p);
        r->path[0] = '\0';
    }
}

void semel__conf_between(struct conf_reader *r)
{
    between_routes(r);
    check_outboxes(r);
}
