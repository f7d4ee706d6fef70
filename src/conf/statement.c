/* SPDX-License-Identifier: MIT
 *
 * statement.c: the statement of a sql handler and its values: what the handler itself says of them without a database,
 * at the place in the file that it speaks of.
 */
#include <stdlib.h>

#include "conf/private.h"
#include "handler/sql.h"

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

void semel__conf_statement(struct conf_reader *r, const struct semel_route *route, const struct conf_node *node)
{
    bool lite = r->owned->conf.store_kind == SEMEL_CONF_STORE_SQLITE;
    const struct semel_conf_sql *sql = &route->handler.u.sql;
    const struct semel_sql_desc desc = {
        .statement = sql->statement,
        .mode = sql->set ? SEMEL_SQL_SET : SEMEL_SQL_EACH,
        .values = route->values.at,
        .n_values = route->values.n,
        .ordered = route->policy.order != SEMEL_ORDER_NONE,
    };
    struct semel_error err;
    if (semel__sql_check(&desc, lite ? SEMEL_SQL_SQLITE : SEMEL_SQL_POSTGRES, &err) == SEMEL_OK)
        return;
    bool values = strncmp(err.text, "values", 6) == 0;
    struct conf_place place = values ? value_place(r, node, err.text) : statement_place(r, node, err.text);
    if (from_outside(node)) /* the text may quote it */
        semel__conf_wrong_at(r, place, values ? "values" : "do.sql",
                             "%s: the statement and its values do not fit each other, or one of them is none", r->path);
    else
        semel__conf_wrong_at(r, place, values ? "values" : "do.sql", "%s: %s", r->path, err.text);
}
