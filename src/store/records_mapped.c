/* SPDX-License-Identifier: MIT
 *
 * records_mapped.c: finds a mapped table in the catalog, checks its columns, and makes statements of the templates.
 * mapped.h has the invariants.
 *
 * Each word of a template has its text in struct words, made once per mapping: the quoted names, and one expression per
 * column of an event, by the type of the column. The two databases differ in these texts only.
 */
#include <ctype.h>
#include <stdio.h>

#include "store/mapped.h"
#include "store/records.h"

#define NAME_MAX_BYTES 255
#define TEXT_MAX_BYTES 65536
#define COLUMNS_MAX 1600

struct args {
    struct semel_str schema, table, mark, id, order, relation, places;
};

static const struct sql_field args_fields[] = {
    SQL_FIELD(struct args, schema, schema_name), SQL_FIELD(struct args, table, table_name),
    SQL_FIELD(struct args, mark, column_name),   SQL_FIELD(struct args, id, id_column),
    SQL_FIELD(struct args, order, order_column), SQL_FIELD(struct args, relation, relation),
    SQL_FIELD(struct args, places, places),
};

struct found {
    struct semel_str schema, table, kind;
    bool may_read, may_change;
};

struct column {
    struct semel_str name, type_schema, type, kind, collation_schema, collation;
    bool not_null;
};

/* The parts of an event that columns of the table can be. */
enum role { ORDER, ID, KIND, WHOSE, TYPE, PAYLOAD, HEADERS, DESTINATION, CREATED, MARK, ROLES };

#define TEXTS "text varchar bpchar name uuid int2 int4 int8"
static const struct {
    const char *setting;
    size_t offset;
    const char *types; /* PostgreSQL: of pg_catalog */
    bool enums;
    const char *not_types; /* SQLite: what a declared type must not contain */
} roles[ROLES] = {
    [ORDER] = {"order", offsetof(struct semel_relay_table, order),
               "int2 int4 int8 numeric date timestamp timestamptz uuid text varchar", false,
               "json bool real floa doub"},
    [ID] = {"id", offsetof(struct semel_relay_table, id), "uuid text varchar int2 int4 int8", false,
            "json bool blob real floa doub date time"},
    [KIND] = {"aggregatetype", offsetof(struct semel_relay_table, aggregatetype), TEXTS, true, "json bool blob"},
    [WHOSE] = {"aggregateid", offsetof(struct semel_relay_table, aggregateid), TEXTS, true, "json bool blob"},
    [TYPE] = {"type", offsetof(struct semel_relay_table, type), TEXTS, true, "json bool blob"},
    [PAYLOAD] = {"payload", offsetof(struct semel_relay_table, payload), "jsonb json text varchar bytea", false, ""},
    [HEADERS] = {"headers", offsetof(struct semel_relay_table, headers), "jsonb json text varchar", false,
                 "int bool blob real floa doub date time"},
    [DESTINATION] = {"destination", offsetof(struct semel_relay_table, destination), TEXTS, true, "json bool blob"},
    [CREATED] = {"created_at", offsetof(struct semel_relay_table, created_at), "timestamptz timestamp", false,
                 "json bool blob"},
    [MARK] = {"mark", offsetof(struct semel_relay_table, mark),
              "timestamptz timestamp bool text varchar int2 int4 int8", true, "json blob"},
};

/* The words of the templates, without their @. */
/* clang-format off */
#define WORD_MAP(X)                                                                                     \
    X(table) X(id) X(place) X(id_type) X(place_type) X(id_text) X(place_text) X(kind) X(whose) X(type)  \
    X(payload) X(headers) X(destination) X(created) X(pending) X(take)
/* clang-format on */
enum word {
#define X(name) WORD_##name,
    WORD_MAP(X)
#undef X
        WORDS
};
static const char *const word_names[WORDS] = {
#define X(name) #name,
    WORD_MAP(X)
#undef X
};

/* A table on its way to statements. */
struct mapping {
    struct sql *db;
    const struct semel_relay_table *table;
    struct semel_arena *arena;
    bool sqlite;
    struct found found;
    struct semel_str relation; /* quoted */
    const struct column *columns[ROLES];
    struct semel_str words[WORDS];
};

/* ---- names --------------------------------------------------------------------------------------- */

/* One part of a name: as it is, or quoted as in SQL. false: it is none. */
static bool next_part(struct semel_str *rest, struct semel_arena *arena, struct semel_str *ret)
{
    char *out = semel__arena_alloc(arena, rest->n + 1, 1);
    size_t n = 0, i = 0;
    const bool quoted = rest->n > 0 && rest->p[0] == '"';
    if (out == NULL)
        return false;
    for (i = quoted; i < rest->n; i++) {
        if (quoted && rest->p[i] == '"') {
            if (i + 1 == rest->n || rest->p[i + 1] != '"')
                break;
            i++;
        } else if (!quoted && rest->p[i] == '.') {
            break;
        }
        out[n++] = rest->p[i];
    }
    if (quoted && i == rest->n)
        return false; /* the quote has no end */
    i += quoted;
    if (i < rest->n && rest->p[i] != '.')
        return false;
    *ret = (struct semel_str){out, n};
    rest->n = i < rest->n ? rest->n - i - 1 : 0;
    rest->p += i + 1;
    return n > 0 && n <= NAME_MAX_BYTES;
}

static bool split_name(struct semel_str name, struct semel_arena *arena, struct semel_str *ret_schema,
                       struct semel_str *ret_table)
{
    struct semel_str rest = name;
    bool two = false;
    *ret_schema = (struct semel_str){0};
    if (!next_part(&rest, arena, ret_table))
        return false;
    if (rest.n > 0) {
        two = true;
        *ret_schema = *ret_table;
        if (!next_part(&rest, arena, ret_table))
            return false;
    }
    return rest.n == 0 && (two || name.p[name.n - 1] != '.');
}

static void put_quoted(struct semel_buf *buf, struct semel_str name)
{
    semel__buf_addz(buf, "\"");
    for (size_t i = 0; i < name.n; i++)
        semel__buf_add(buf, name.p[i] == '"' ? "\"\"" : name.p + i, name.p[i] == '"' ? 2 : 1);
    semel__buf_addz(buf, "\"");
}

/* A text of which nothing is known, as an expression. */
static void put_text(struct semel_buf *buf, const struct mapping *m, struct semel_str text)
{
    semel__buf_addz(buf, m->sqlite ? "CAST(x'" : "pg_catalog.convert_from(pg_catalog.decode('");
    for (size_t i = 0; i < text.n; i++)
        semel__buf_addf(buf, "%02x", (unsigned char)text.p[i]);
    semel__buf_addz(buf, m->sqlite ? "' AS TEXT)" : "', 'hex'), 'UTF8')");
}

static void show(char *out, size_t size, struct semel_str s)
{
    semel__str_show(out, size, s);
}

static struct semel_str setting_of(const struct semel_relay_table *table, enum role role)
{
    return *(const struct semel_str *)((const char *)table + roles[role].offset);
}

static semel_status refuse(struct semel_error *err, const char *text)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s", text);
}

/* ---- the catalog --------------------------------------------------------------------------------- */

static semel_status find_table(struct mapping *m, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_MUST(struct found, schema, schema_name, 1, NAME_MAX_BYTES),
        SQL_MUST(struct found, table, table_name, 1, NAME_MAX_BYTES),
        SQL_MUST(struct found, kind, table_kind, 1, 1),
        SQL_FIELD(struct found, may_read, may_read),
        SQL_FIELD(struct found, may_change, may_change),
    };
    struct args args = {.mark = m->table->mark};
    struct sql_into into = {SQL_FIELDS(fields), m->arena, &m->found, sizeof m->found, 0};
    char name[200];
    show(name, sizeof name, m->table->name);
    if (!split_name(m->table->name, m->arena, &args.schema, &args.table))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "table %s: the name must be TABLE or SCHEMA.TABLE; a part with a dot is written in quotes",
                           name);
    semel_status status = semel__db_do(m->db, "looking for a mapped table", SQL_table_find, SQL_ONE(args_fields, &args),
                                       NULL, semel__db_read_item, &into, err);
    if (status != SEMEL_OK)
        return status;
    if (into.filled == 0)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is no table %s%s; upper and lower case count",
                           name,
                           semel__str_given(args.schema) || m->sqlite ? "" : " in the schemas of the search_path");
    if (m->sqlite ? m->found.table.n > 6 && memcmp(m->found.table.p, "semel_", 6) == 0
                  : semel__str_eqz(m->found.schema, "semel"))
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "%s is Semel's own; without `table` its outbox is relayed", name);
    if (m->found.kind.p[0] != 'r' && m->found.kind.p[0] != 'p')
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is no table", name);
    if (!m->found.may_read || !m->found.may_change)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "the role may not %s rows of %s: GRANT it",
                           !m->found.may_read                 ? "read"
                           : semel__str_given(m->table->mark) ? "update the mark of"
                                                              : "delete",
                           name);
    return SEMEL_OK;
}

static bool has_word(const char *list, struct semel_str word)
{
    const size_t n = strlen(list);
    for (size_t i = 0; i + word.n <= n; i++)
        if (strncmp(list + i, word.p, word.n) == 0 && (i == 0 || list[i - 1] == ' ') &&
            (list[i + word.n] == ' ' || list[i + word.n] == '\0'))
            return true;
    return false;
}

static bool contains(struct semel_str text, const char *part, size_t n)
{
    for (size_t i = 0; i + n <= text.n; i++)
        if (memcmp(text.p + i, part, n) == 0)
            return true;
    return false;
}

/* Is the declared type, on SQLite, none of those that cannot be meant? */
static bool fits_sqlite(enum role role, struct semel_str type)
{
    const char *at = roles[role].not_types;
    while (*at != '\0') {
        const size_t n = strcspn(at, " ");
        if (contains(type, at, n))
            return false;
        at += n + (at[n] == ' ');
    }
    return true;
}

static semel_status check_column(const struct mapping *m, enum role role, struct semel_error *err)
{
    const struct column *c = m->columns[role];
    char name[100], type[100], relation[200];
    const bool known = m->sqlite
                           ? fits_sqlite(role, c->type)
                           : (semel__str_eqz(c->type_schema, "pg_catalog") && has_word(roles[role].types, c->type)) ||
                                 (roles[role].enums && semel__str_eqz(c->kind, "e"));
    show(name, sizeof name, c->name);
    show(type, sizeof type, c->type);
    show(relation, sizeof relation, m->relation);
    if (!known && m->sqlite)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "column %s of %s is of type %s, which `%s` cannot be", name, relation, type,
                           roles[role].setting);
    if (!known)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "column %s of %s is of type %s; `%s` must be one of: %s%s", name, relation, type,
                           roles[role].setting, roles[role].types, roles[role].enums ? " enum" : "");
    if ((role == ORDER || role == ID) && !c->not_null)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "column %s of %s may be NULL; a row is found by it: `%s` must be NOT NULL", name, relation,
                           roles[role].setting);
    return SEMEL_OK;
}

static semel_status find_columns(struct mapping *m, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_MUST(struct column, name, column_name, 0, NAME_MAX_BYTES),
        SQL_SHOWN(struct column, type_schema, type_schema, NAME_MAX_BYTES),
        SQL_SHOWN(struct column, type, type_name, NAME_MAX_BYTES),
        SQL_SHOWN(struct column, kind, type_kind, 1),
        SQL_FIELD(struct column, not_null, not_null),
        SQL_SHOWN(struct column, collation_schema, collation_schema, NAME_MAX_BYTES),
        SQL_SHOWN(struct column, collation, collation_name, NAME_MAX_BYTES),
    };
    const struct args args = {.schema = m->found.schema, .table = m->found.table};
    struct sql_list list = {SQL_FIELDS(fields), .arena = m->arena, .size = sizeof(struct column)};
    semel_status status = semel__db_do(m->db, "looking for columns of a mapped table", SQL_table_columns,
                                       SQL_ONE(args_fields, &args), NULL, semel__db_read_list, &list, err);
    status = semel__db_list_end(&list, status, err);
    const struct column *columns = list.items;
    for (enum role role = 0; status == SEMEL_OK && role < ROLES; role++) {
        const struct semel_str wanted = setting_of(m->table, role);
        if (!semel__str_given(wanted))
            continue;
        for (size_t i = 0; i < list.n; i++)
            if (semel__str_eq(columns[i].name, wanted))
                m->columns[role] = &columns[i];
        if (m->columns[role] != NULL) {
            status = check_column(m, role, err);
            continue;
        }
        char name[100], relation[200];
        show(name, sizeof name, wanted);
        show(relation, sizeof relation, m->relation);
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                             "%s has no column %s, which `%s` names; upper and lower case count", relation, name,
                             roles[role].setting);
    }
    return status;
}

static semel_status check_unique(struct mapping *m, struct semel_error *err)
{
    static const struct sql_field fields[] = {{.name = SQL_NAME_found, .size = sizeof(bool)}};
    const struct args args = {.schema = m->found.schema,
                              .table = m->found.table,
                              .id = m->table->id,
                              .order = m->table->order};
    bool unique = false;
    char relation[200], id[100];
    struct sql_into into = {SQL_FIELDS(fields), NULL, &unique, sizeof unique, 0};
    semel_status status = semel__db_do(m->db, "looking for a key of a mapped table", SQL_table_unique,
                                       SQL_ONE(args_fields, &args), NULL, semel__db_read_item, &into, err);
    if (status != SEMEL_OK || unique)
        return status;
    show(relation, sizeof relation, m->relation);
    show(id, sizeof id, m->table->id);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "%s has no unique index on column %s: two rows with one id could not be told apart", relation,
                       id);
}

/* ---- words --------------------------------------------------------------------------------------- */

static bool is_type(const struct column *c, const char *types)
{
    return c != NULL && semel__str_eqz(c->type_schema, "pg_catalog") && has_word(types, c->type);
}

#define TIMES "timestamp timestamptz"

/* x."column", or "column" by itself. */
static void put_column(struct semel_buf *buf, const struct column *c, const char *alias)
{
    semel__buf_addz(buf, alias);
    put_quoted(buf, c->name);
}

/* The type that a text is cast to so that it can be compared with the column. */
static void put_type(struct semel_buf *buf, const struct column *c)
{
    if (is_type(c, "int2 int4 int8")) {
        semel__buf_addz(buf, "pg_catalog.int8");
    } else if (is_type(c, "text varchar")) {
        semel__buf_addz(buf, "pg_catalog.text COLLATE ");
        put_quoted(buf, c->collation_schema);
        semel__buf_addz(buf, ".");
        put_quoted(buf, c->collation);
    } else {
        put_quoted(buf, c->type_schema);
        semel__buf_addz(buf, ".");
        put_quoted(buf, c->type);
    }
}

/* A column as text; `other` stands for NULL. */
static void put_as_text(struct semel_buf *buf, const struct mapping *m, enum role role, const char *other)
{
    semel__buf_addz(buf, m->sqlite ? "coalesce(CAST(" : "coalesce((");
    put_column(buf, m->columns[role], "x.");
    semel__buf_addf(buf, m->sqlite ? " AS TEXT), %s)" : ")::pg_catalog.text, %s) COLLATE pg_catalog.\"C\"", other);
}

static void put_payload(struct semel_buf *buf, const struct mapping *m)
{
    const struct column *c = m->columns[PAYLOAD];
    if (c == NULL) {
        semel__buf_addz(buf, m->sqlite ? "NULL" : "NULL::pg_catalog.bytea");
    } else if (m->sqlite) {
        semel__buf_addz(buf, "CAST(");
        put_column(buf, c, "x.");
        semel__buf_addz(buf, " AS BLOB)");
    } else if (is_type(c, "bytea")) {
        put_column(buf, c, "x.");
    } else {
        semel__buf_addz(buf, "pg_catalog.convert_to((");
        put_column(buf, c, "x.");
        semel__buf_addz(buf, ")::pg_catalog.text, 'UTF8')");
    }
}

/* On SQLite a number counts seconds, milliseconds or microseconds, and a text is a date that SQLite reads. */
static void put_created_sqlite(struct semel_buf *buf, const struct column *c)
{
    struct semel_buf name;
    semel__buf_init(&name, TEXT_MAX_BYTES);
    put_column(&name, c, "x.");
    const struct semel_str n = semel__buf_str(&name);
    semel__buf_addf(buf,
                    "CASE typeof(%.*s) WHEN 'integer' THEN CASE WHEN abs(%.*s) < 100000000000 THEN %.*s * 1000000 WHEN "
                    "abs(%.*s) < 100000000000000 THEN %.*s * 1000 ELSE %.*s END WHEN 'text' THEN "
                    "CAST((julianday(%.*s) - 2440587.5) * 86400000000.0 AS INTEGER) END",
                    (int)n.n, n.p, (int)n.n, n.p, (int)n.n, n.p, (int)n.n, n.p, (int)n.n, n.p, (int)n.n, n.p, (int)n.n,
                    n.p);
    buf->failed |= name.failed;
    semel__buf_done(&name);
}

static void put_created(struct semel_buf *buf, const struct mapping *m)
{
    const struct column *c = m->columns[CREATED];
    if (c == NULL && is_type(m->columns[ORDER], TIMES))
        c = m->columns[ORDER];
    if (c == NULL) {
        semel__buf_addz(buf, m->sqlite ? "NULL" : "NULL::pg_catalog.timestamptz");
    } else if (m->sqlite) {
        put_created_sqlite(buf, c);
    } else { /* without a zone it is UTC; infinity is no time */
        semel__buf_addz(buf, "CASE WHEN pg_catalog.isfinite(");
        put_column(buf, c, "x.");
        semel__buf_addz(buf, is_type(c, "timestamp") ? ") THEN pg_catalog.timezone('UTC', " : ") THEN (");
        put_column(buf, c, "x.");
        semel__buf_addz(buf, ") END");
    }
}

static void put_place_text(struct semel_buf *buf, const struct mapping *m)
{
    const struct column *c = m->columns[ORDER];
    const bool time = is_type(c, "date timestamp timestamptz"); /* the same whatever DateStyle is */
    if (!m->sqlite)
        semel__buf_addz(buf, time ? "(pg_catalog.to_jsonb(" : "(");
    put_column(buf, c, "x.");
    if (!m->sqlite)
        semel__buf_addz(buf, time ? ") OPERATOR(pg_catalog.#>>) '{}')" : ")::pg_catalog.text");
}

/* A value of a mark. The settings allow no character that means anything in SQL. */
static void put_value(struct semel_buf *buf, const struct mapping *m, struct semel_str value)
{
    semel__buf_addf(buf, "'%.*s'", (int)value.n, value.p);
    if (m->sqlite)
        return;
    semel__buf_addz(buf, "::");
    put_type(buf, m->columns[MARK]);
}

static bool is_flag(const struct mapping *m)
{
    const struct column *c = m->columns[MARK];
    return m->sqlite ? contains(c->type, "bool", 4) : is_type(c, "bool");
}

/* The condition of a row that was not published. */
static void put_pending(struct semel_buf *buf, const struct mapping *m, const char *alias)
{
    const struct column *c = m->columns[MARK];
    if (c == NULL) {
        semel__buf_addz(buf, m->sqlite ? "1" : "true");
        return;
    }
    if (is_flag(m) && c->not_null && !m->sqlite)
        semel__buf_addz(buf, "NOT ");
    put_column(buf, c, alias);
    if (semel__str_given(m->table->unmarked)) {
        semel__buf_addz(buf, m->sqlite ? " = " : " OPERATOR(pg_catalog.=) ");
        put_value(buf, m, m->table->unmarked);
    } else if (!is_flag(m)) {
        semel__buf_addz(buf, " IS NULL");
    } else if (!c->not_null) {
        semel__buf_addz(buf, " IS NOT TRUE");
    } else if (m->sqlite) {
        semel__buf_addz(buf, " = 0");
    }
}

static void put_marked(struct semel_buf *buf, const struct mapping *m)
{
    const struct column *c = m->columns[MARK];
    if (semel__str_given(m->table->marked))
        put_value(buf, m, m->table->marked);
    else if (is_flag(m))
        semel__buf_addz(buf, m->sqlite ? "1" : "true");
    else if (m->sqlite)
        semel__buf_addz(buf, contains(c->type, "int", 3) ? "CAST(strftime('%s', 'now') AS INTEGER)"
                                                         : "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')");
    else
        semel__buf_addz(buf,
                        is_type(c, "timestamp") ? "pg_catalog.timezone('UTC', pg_catalog.now())" : "pg_catalog.now()");
}

/* Deletes or marks; what follows says which rows. */
static void put_take(struct semel_buf *buf, const struct mapping *m)
{
    const bool marks = m->columns[MARK] != NULL;
    semel__buf_addz(buf, marks ? "UPDATE " : "DELETE FROM ");
    semel__buf_add(buf, m->relation.p, m->relation.n);
    semel__buf_addz(buf, " AS x");
    if (marks) {
        semel__buf_addz(buf, " SET ");
        put_column(buf, m->columns[MARK], "");
        semel__buf_addz(buf, " = ");
        put_marked(buf, m);
    }
    if (!m->sqlite)
        semel__buf_addz(buf, marks ? " FROM" : " USING");
}

static void put_or_table_name(struct semel_buf *buf, const struct mapping *m, enum role role)
{
    if (m->columns[role] != NULL)
        put_as_text(buf, m, role, "''");
    else
        put_text(buf, m, m->found.table);
}

static void put_word(struct semel_buf *buf, const struct mapping *m, enum word word)
{
    const char *none = m->sqlite ? "NULL" : "NULL::pg_catalog.text";
    switch (word) {
    case WORD_table:
        semel__buf_add(buf, m->relation.p, m->relation.n);
        break;
    case WORD_id:
    case WORD_place:
        put_column(buf, m->columns[word == WORD_id ? ID : ORDER], "");
        break;
    case WORD_id_type:
    case WORD_place_type:
        if (!m->sqlite)
            put_type(buf, m->columns[word == WORD_id_type ? ID : ORDER]);
        break;
    case WORD_id_text:
        put_as_text(buf, m, ID, "''");
        break;
    case WORD_place_text:
        put_place_text(buf, m);
        break;
    case WORD_kind:
        put_or_table_name(buf, m, KIND);
        break;
    case WORD_whose:
        put_as_text(buf, m, m->columns[WHOSE] != NULL ? WHOSE : ID, "''");
        break;
    case WORD_type:
        put_or_table_name(buf, m, TYPE);
        break;
    case WORD_payload:
        put_payload(buf, m);
        break;
    case WORD_headers:
        if (m->columns[HEADERS] != NULL)
            put_as_text(buf, m, HEADERS, "'{}'");
        else
            semel__buf_addz(buf, "'{}'");
        break;
    case WORD_destination:
        if (m->columns[DESTINATION] != NULL)
            put_as_text(buf, m, DESTINATION, none);
        else
            semel__buf_addz(buf, none);
        break;
    case WORD_created:
        put_created(buf, m);
        break;
    case WORD_pending:
        put_pending(buf, m, "x.");
        break;
    case WORD_take:
        put_take(buf, m);
        break;
    case WORDS:
        break;
    }
}

/* ---- templates ----------------------------------------------------------------------------------- */

static bool keep(struct semel_buf *buf, struct semel_arena *arena, struct semel_str *ret)
{
    const bool ok = !buf->failed && semel__arena_copy(arena, semel__buf_str(buf), ret);
    semel__buf_done(buf);
    return ok;
}

static bool make_words(struct mapping *m)
{
    bool ok = true;
    for (enum word w = 0; ok && w < WORDS; w++) {
        struct semel_buf buf;
        semel__buf_init(&buf, TEXT_MAX_BYTES);
        put_word(&buf, m, w);
        ok = keep(&buf, m->arena, &m->words[w]);
    }
    return ok;
}

/* Each @word of the template becomes its text; that is not looked at again. */
static bool make_text(const struct mapping *m, const char *template, struct semel_str *ret)
{
    struct semel_buf buf;
    semel__buf_init(&buf, TEXT_MAX_BYTES);
    for (const char *at = template; *at != '\0';) {
        size_t n = strcspn(at, "@");
        semel__buf_add(&buf, at, n);
        at += n;
        if (*at == '\0')
            break;
        for (n = 1; islower((unsigned char)at[n]) || at[n] == '_'; n++)
            ;
        enum word w = 0;
        while (w < WORDS && (strlen(word_names[w]) != n - 1 || memcmp(word_names[w], at + 1, n - 1) != 0))
            w++;
        buf.failed |= w == WORDS; /* our own mistake */
        if (w < WORDS)
            semel__buf_add(&buf, m->words[w].p, m->words[w].n);
        at += n;
    }
    semel__buf_add(&buf, "", 1);
    return keep(&buf, m->arena, ret);
}

static bool make_statements(const struct mapping *m, struct sql_mapping *ret)
{
    struct semel_str text;
    for (int id = 0; id < SQL_COUNT; id++) {
        const struct sql_statement *template = &m->db->driver->statements[id];
        if (!template->maps)
            continue;
        ret->made[id] = *template;
        if (!make_text(m, template->sql.text, &text))
            return false;
        ret->made[id].sql = (struct sql_text){NULL, text.p};
        ret->made[id].table = m->relation.p;
    }
    return true;
}

/* ---- what is exported ---------------------------------------------------------------------------- */

static semel_status check_mark(const struct mapping *m, struct semel_error *err)
{
    const bool values = semel__str_given(m->table->marked);
    const bool states = !m->sqlite && m->columns[MARK] != NULL && !is_flag(m) && !is_type(m->columns[MARK], TIMES);
    if (states && !values)
        return refuse(err,
                      "the column of `mark` is neither a time nor a boolean: `unmarked` and `marked` must give its "
                      "values before and after");
    if (values && !states && !m->sqlite)
        return refuse(err,
                      "`unmarked` and `marked` are for a column with states; that of `mark` is a time or a boolean");
    return SEMEL_OK;
}

static semel_status make(struct mapping *m, struct semel_store *store, const struct semel_relay_table *table,
                         struct semel_arena *arena, struct sql_mapping **ret, struct semel_error *err)
{
    struct semel_buf relation;
    *m = (struct mapping){.db = semel__db_of(store), .table = table, .arena = arena};
    m->sqlite = !semel__db_needs(m->db, SQL_mapped_plan_by_index);
    semel_status status = find_table(m, err);
    if (status != SEMEL_OK)
        return status;
    semel__buf_init(&relation, TEXT_MAX_BYTES);
    put_quoted(&relation, m->found.schema);
    semel__buf_addz(&relation, ".");
    put_quoted(&relation, m->found.table);
    if (!keep(&relation, arena, &m->relation))
        return semel__fail_memory(err);
    status = find_columns(m, err);
    if (status == SEMEL_OK)
        status = check_mark(m, err);
    if (status == SEMEL_OK)
        status = check_unique(m, err);
    if (status != SEMEL_OK)
        return status;
    *ret = semel__arena_alloc(arena, 1, sizeof **ret);
    if (*ret == NULL || !make_words(m) || !make_statements(m, *ret))
        return semel__fail_memory(err);
    return SEMEL_OK;
}

struct plan {
    const struct mapping *m;
    struct semel_str partial; /* SQLite: names of indexes with a condition, each behind a blank */
    bool slow, searched;
};

static semel_status read_plan(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field fields[] = {
        {.name = SQL_NAME_plan, .size = sizeof(struct semel_str), .lenient = true, .high = TEXT_MAX_BYTES}};
    struct plan *plan = ctx;
    struct semel_str line = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(fields), NULL, &line, err);
    while (line.n > 0 && (line.p[0] == ' ' || line.p[0] == '-' || line.p[0] == '>')) {
        line.p++;
        line.n--;
    }
    if (!plan->m->sqlite) {
        plan->slow |= contains(line, "Filter:", 7) || contains(line, "Seq Scan", 8) || semel__str_eqz(line, "Sort");
        return status;
    }
    plan->slow |= contains(line, "B-TREE FOR ORDER BY", 19);
    plan->searched |= contains(line, "SEARCH", 6);
    for (size_t at = 0; at < plan->partial.n;) { /* name by name */
        const char *end = memchr(plan->partial.p + at, '\0', plan->partial.n - at);
        const size_t n = end != NULL ? (size_t)(end - plan->partial.p) - at : plan->partial.n - at;
        plan->searched |= contains(line, "INDEX ", 6) && contains(line, plan->partial.p + at, n);
        at += n + 1;
    }
    return status;
}

static semel_status read_partial(void *ctx, size_t item, const struct sql_row *row, struct semel_error *err)
{
    static const struct sql_field fields[] = {{.name = SQL_NAME_column_name, .size = sizeof(struct semel_str)}};
    struct semel_str name = {0};
    (void)item;
    semel_status status = semel__db_fill(row, SQL_FIELDS(fields), NULL, &name, err);
    semel__buf_add(ctx, name.p, name.n);
    semel__buf_add(ctx, "", 1);
    return status;
}

/* Does an index give the rows that were not published, and no others, in their order? */
static semel_status look_at_plan(const struct mapping *m, bool *ret, struct semel_error *err)
{
    const struct args args = {.schema = m->found.schema, .table = m->found.table};
    const struct sql_set *once = SQL_ONE(args_fields, &args);
    struct plan plan = {.m = m};
    struct semel_buf partial;
    int64_t now_us;
    semel__buf_init(&partial, TEXT_MAX_BYTES);
    semel_status status = semel_store_begin(&m->db->store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    if (m->sqlite)
        status = semel__db_do(m->db, "looking at indexes", SQL_table_partial, once, NULL, read_partial, &partial, err);
    plan.partial = semel__buf_str(&partial);
    if (status == SEMEL_OK && !m->sqlite)
        status = semel__db_do(m->db, "looking at indexes", SQL_mapped_plan_by_index, once, NULL, NULL, NULL, err);
    if (status == SEMEL_OK)
        status = semel__db_do(m->db, "looking at indexes", SQL_mapped_plan, once, NULL, read_plan, &plan, err);
    semel_store_rollback(&m->db->store);
    *ret = !plan.slow && (!m->sqlite || m->columns[MARK] == NULL || plan.searched);
    semel__buf_done(&partial);
    return status;
}

static void say_index(const struct mapping *m, struct semel_relay_inspection *ret)
{
    struct semel_buf buf;
    semel__buf_init(&buf, TEXT_MAX_BYTES);
    semel__buf_addf(&buf, "CREATE INDEX %sON ", m->sqlite ? "NAME " : "");
    semel__buf_add(&buf, m->relation.p + (m->sqlite ? strlen("\"main\".") : 0),
                   m->relation.n - (m->sqlite ? strlen("\"main\".") : 0));
    semel__buf_addz(&buf, " (");
    put_column(&buf, m->columns[ORDER], "");
    semel__buf_addz(&buf, ", ");
    put_column(&buf, m->columns[ID], "");
    semel__buf_addz(&buf, ")");
    if (m->columns[MARK] != NULL) {
        semel__buf_addz(&buf, " WHERE ");
        put_pending(&buf, m, "");
    }
    show(ret->index, sizeof ret->index, semel__buf_str(&buf));
    semel__buf_done(&buf);
}

semel_status semel__mapped_inspect(struct semel_store *store, const struct semel_relay_table *table,
                                   struct semel_relay_inspection *ret, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct sql_mapping *made = NULL, *before = db->mapping;
    struct semel_arena arena;
    struct mapping m;
    *ret = (struct semel_relay_inspection){.indexed = false};
    semel__arena_init(&arena, 1 << 20);
    semel_status status = make(&m, store, table, &arena, &made, err);
    db->mapping = made;
    if (status == SEMEL_OK)
        status = look_at_plan(&m, &ret->indexed, err);
    if (status == SEMEL_OK) {
        show(ret->relation, sizeof ret->relation, m.relation);
        show(ret->order_type, sizeof ret->order_type, m.columns[ORDER]->type);
        say_index(&m, ret);
    }
    db->mapping = before;
    semel__arena_done(&arena);
    return status;
}

struct registered {
    int64_t shard;
    struct semel_str places;
    bool found; /* events stand aside */
};

/* In a transaction. */
static semel_status enter(const struct mapping *m, struct sql_mapping *made, const struct args *args,
                          struct semel_error *err)
{
    static const struct sql_field fields[] = {
        SQL_MUST(struct registered, shard, shard, 64, INT16_MAX),
        SQL_MUST(struct registered, places, places, 0, TEXT_MAX_BYTES),
        SQL_FIELD(struct registered, found, found),
    };
    const struct sql_set *once = SQL_ONE(args_fields, args);
    struct registered entry = {0};
    struct sql_into into = {SQL_FIELDS(fields), m->arena, &entry, sizeof entry, 0};
    semel__db_start(m->db, "registering a mapped table");
    semel__db_run(m->db, SQL_relay_mutex, once, NULL, NULL, NULL);
    semel__db_run(m->db, SQL_mapped_register, once, NULL, NULL, NULL);
    semel__db_run(m->db, SQL_mapped_registered, once, NULL, semel__db_read_item, &into);
    semel_status status = semel__db_flush(m->db, err);
    made->shard = entry.shard;
    if (status != SEMEL_OK || semel__str_eq(entry.places, args->places))
        return status;
    char was[200], is[200];
    show(was, sizeof was, entry.places);
    show(is, sizeof is, args->places);
    if (entry.found)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "events stand aside in the order of %s, and the settings order by %s: publish or discard "
                           "them first (semel outbox ls --aside)",
                           was, is);
    return semel__db_do(m->db, "registering a mapped table", SQL_mapped_order, once, NULL, NULL, NULL, err);
}

semel_status semel__mapped_map(struct semel_store *store, const struct semel_relay_table *table,
                               struct semel_arena *arena, int64_t *ret_shard, struct semel_error *err)
{
    struct sql *db = semel__db_of(store);
    struct sql_mapping *made = NULL;
    struct semel_buf places;
    struct mapping m;
    struct args args = {0};
    int64_t now_us;
    db->mapping = NULL;
    if (table == NULL)
        return SEMEL_OK;
    semel_status status = make(&m, store, table, arena, &made, err);
    if (status != SEMEL_OK)
        return status;
    semel__buf_init(&places, TEXT_MAX_BYTES);
    put_column(&places, m.columns[ORDER], "");
    semel__buf_addf(&places, " %.*s, ", (int)m.columns[ORDER]->type.n, m.columns[ORDER]->type.p);
    put_column(&places, m.columns[ID], "");
    args.relation = m.relation;
    if (!keep(&places, arena, &args.places))
        return semel__fail_memory(err);
    status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
    if (status != SEMEL_OK)
        return status;
    status = enter(&m, made, &args, err);
    if (status == SEMEL_OK)
        status = semel_store_commit(store, err);
    else
        semel_store_rollback(store);
    if (status != SEMEL_OK)
        return status;
    db->mapping = made;
    *ret_shard = made->shard;
    return SEMEL_OK;
}
