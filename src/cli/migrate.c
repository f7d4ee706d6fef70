/* SPDX-License-Identifier: MIT
 *
 * migrate.c: `semel migrate`: brings the tables of a store up to date, or prints the migrations for another tool.
 *
 * Invariants: a database is changed only by migrations of ours, whose tables have the prefix semel_ or are in the
 * schema semel; what is printed is what would be run, together with the line that records it, so that both ways end
 * in the same schema.
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "store/migrations.h"
#include "store/query.h"

/* Also for an owner who is no superuser: pg_locks shows the locks of all roles. */
#define HOLDERS                                                                                               \
    "; who holds locks: SELECT pid, usename, mode, relation::regclass, xact_start, query FROM pg_locks JOIN " \
    "pg_stat_activity USING (pid) WHERE granted AND relation::regclass::text LIKE 'semel.%'"

/* The last version that there is. */
static int newest(const struct cli_store_kind *kind)
{
    return (int)*kind->n;
}

static void print_one(const struct cli_store_kind *kind, const struct semel_migration *m, bool first)
{
    fprintf(stdout, "%s-- semel: migration %d, %s\n\n%s\n", first ? "" : "\n", m->number, m->name, m->sql);
    if (kind->recorded)
        return;
    fprintf(stdout,
            "INSERT INTO semel_schema (version, name, applied_at)\n"
            "VALUES (%d, '%s', CAST(strftime('%%s', 'now') AS INTEGER) * 1000000);\n",
            m->number, m->name);
}

/* --store-kind, else the kind of the store that is given, else SQLite. NULL: cli_fail has reported why. */
static const struct cli_store_kind *asked_kind(const struct cli_args *args)
{
    const char *name = cli_value(args, "store-kind");
    const char *url = getenv("SEMEL_STORE"); /* NOLINT(concurrency-mt-unsafe): there are no threads */
    int code = CLI_OK;
    if (name == NULL && (cli_value(args, "store") != NULL || (url != NULL && url[0] != '\0'))) {
        url = cli_store_url(args, &code);
        return url != NULL ? cli_store_kind_of(url) : NULL;
    }
    const struct cli_store_kind *kind = cli_store_kind(name != NULL ? name : "sqlite");
    if (kind == NULL && cli_store_left_out(name))
        cli_fail(CLI_USAGE, "--store-kind is '%s'; this semel was built without PostgreSQL", name);
    else if (kind == NULL)
        cli_fail(CLI_USAGE, "--store-kind is '%s'; it must be sqlite or postgres", name);
    return kind;
}

static int print(const struct cli_args *args)
{
    const struct cli_store_kind *kind = asked_kind(args);
    int64_t from = 0;
    if (kind == NULL || !cli_int(args, "from", 0, newest(kind), 0, &from))
        return CLI_USAGE;
    for (int64_t i = from; i < newest(kind); i++)
        print_one(kind, &kind->migrations[i], i == from);
    return CLI_OK;
}

static int report_schema(const struct cli *cli, int from, int to)
{
    struct semel_object object;
    if (cli->json) {
        semel__object_init(&object);
        semel__object_number(&object, "from", from);
        semel__object_number(&object, "to", to);
        return cli_object_print(&object);
    }
    if (from == to)
        cli_say(cli, "schema %d: nothing to do", to);
    else
        cli_say(cli, "schema %d -> %d", from, to);
    return CLI_OK;
}

static int migrate(const struct cli *cli, const struct cli_args *args)
{
    struct semel_store *store = NULL;
    struct semel_error err = {0};
    int code = CLI_OK;
    const char *url = cli_store_url(args, &code);
    if (url == NULL)
        return code;
    semel_status status = cli_store_try(url, true, &store, &err);
    if (status == SEMEL_RETRY && err.cls == SEMEL_CLASS_TRANSIENT)
        return cli_fail(CLI_STORE, "%s: %s; try again when it has ended%s", cli_store_shown(url), err.text,
                        strcmp(cli_store_kind_of(url)->name, "postgres") == 0 ? HOLDERS : "");
    if (status != SEMEL_OK)
        return cli_store_fail(url, status, &err);
    int from = semel_query_schema_found(store);
    semel_store_close(store);
    return report_schema(cli, from, newest(cli_store_kind_of(url)));
}

static int run(struct cli *cli, const struct cli_args *args)
{
    if (cli_flag(args, "print"))
        return cli->json ? cli_fail(CLI_USAGE, "--print prints SQL, not JSON; leave out --json") : print(args);
    if (cli_value(args, "from") != NULL || cli_value(args, "store-kind") != NULL)
        return cli_fail(CLI_USAGE, "--from and --store-kind go with --print");
    return migrate(cli, args);
}

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    {"print", 0, NULL, "write the SQL of the migrations to stdout instead; no store is needed"},
    {"from", 0, "N", "with --print: only the migrations after version N (default: 0, all of them)"},
    {"store-kind", 0, "KIND", "with --print: sqlite or postgres (default: as the store, else sqlite)"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_migrate = {
    .name = "migrate",
    .summary = "bring the tables of a store up to date",
    .options = options,
    .help = "A database that is missing is created on SQLite; on PostgreSQL it must be there, and the role must be\n"
            "allowed to create a schema in it. One that holds other tables is left as it is and gets Semel's besides:\n"
            "on SQLite all of them begin with semel_, on PostgreSQL they are in a schema semel. What is printed by\n"
            "--print begins and ends no transaction, so that a migration tool can run it inside its own, and records\n"
            "itself in semel_schema or semel.schema.\n"
            "Exit code 5: no database that Semel can work with, or its tables are newer than this program.\n"
            "\n"
            "Examples\n"
            "  semel migrate --store sqlite:shop.db\n"
            "  semel migrate --store postgres://owner@db.example.com/shop\n"
            "  semel migrate --print --store-kind postgres > 0042_semel.sql\n"
            "  semel migrate --print --from 1 > 0042_semel.sql",
    .run = run,
};
