/* SPDX-License-Identifier: MIT
 *
 * migrate.c: `semel migrate`: brings the tables of a store up to date, or prints the migrations for another tool.
 *
 * Invariants: a database is changed only by migrations of ours, whose tables have the prefix semel_; what is printed is
 * what would be run, together with the line that records it, so that both ways end in the same schema.
 */
#include "cli/cli.h"
#include "store/migrations.h"
#include "store/sqlite_store.h"

/* The last version that there is. */
static int newest(void)
{
    return (int)semel__sqlite_migrations_n;
}

static int print(const struct cli_args *args)
{
    const char *kind = cli_value(args, "store-kind");
    int64_t from = 0;
    if (kind != NULL && strcmp(kind, "sqlite") != 0)
        return cli_fail(CLI_USAGE, "--store-kind is '%s'; it must be sqlite", kind);
    if (!cli_int(args, "from", 0, newest(), 0, &from))
        return CLI_USAGE;
    for (int64_t i = from; i < newest(); i++) {
        const struct semel_migration *m = &semel__sqlite_migrations[i];
        fprintf(stdout, "%s-- semel: migration %d, %s\n\n%s\n", i > from ? "\n" : "", m->number, m->name, m->sql);
        fprintf(stdout,
                "INSERT INTO semel_schema (version, name, applied_at)\n"
                "VALUES (%d, '%s', CAST(strftime('%%s', 'now') AS INTEGER) * 1000000);\n",
                m->number, m->name);
    }
    return CLI_OK;
}

static int told(const struct cli *cli, int from)
{
    struct cli_object object;
    if (cli->json) {
        cli_object_init(&object);
        cli_object_number(&object, "from", from);
        cli_object_number(&object, "to", newest());
        return cli_object_print(&object);
    }
    if (from == newest())
        cli_say(cli, "schema %d: nothing to do", newest());
    else
        cli_say(cli, "schema %d -> %d", from, newest());
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
    if (status != SEMEL_OK)
        return cli_store_fail(url, status, &err);
    int from = semel__sqlite_schema_found(store);
    semel_store_close(store);
    return told(cli, from);
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
    {"store-kind", 0, "KIND", "with --print: the database that the SQL is for: sqlite (default)"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_migrate = {
    .name = "migrate",
    .summary = "bring the tables of a store up to date",
    .options = options,
    .help = "A database that is missing is created. One that holds other tables is left as it is and gets Semel's\n"
            "besides; all of them begin with semel_. What is printed by --print begins and ends no transaction, so\n"
            "that a migration tool can run it inside its own, and records itself in semel_schema.\n"
            "Exit code 5: the file is not a database of SQLite, or its tables are newer than this program.\n"
            "\n"
            "Examples\n"
            "  semel migrate --store sqlite:shop.db\n"
            "  semel migrate --print --from 1 > 0042_semel.sql",
    .run = run,
};
