/* SPDX-License-Identifier: MIT
 *
 * version.c: `semel version`, and `semel --version`.
 */
#include "cli/cli.h"
#include "semel/semel.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static int run(struct cli *cli, const struct cli_args *args)
{
    char about[256] = "", client[64] = "";
    (void)args;
    semel__sqlite_about(semel__sqlite_version(), about, sizeof(about));
#ifdef SEMEL_WITH_POSTGRES
    semel__pg_client(client, sizeof(client));
#endif
    if (cli->json) {
        struct semel_object object;
        semel__object_init(&object);
        semel__object_text(&object, "version", semel__str(semel_version()));
        semel__object_text(&object, "compiler", SEMEL_STR(COMPILER));
        semel__object_text(&object, "sqlite", semel__str(about));
        semel__object_text(&object, "postgres", semel__str(client[0] != '\0' ? client : NULL));
        return cli_object_print(&object);
    }
    cli_say(cli, "semel %s", semel_version());
    cli_say(cli, "compiler %s", COMPILER);
    cli_say(cli, "%s", about);
    cli_say(cli, "%s", client[0] != '\0' ? client : "built without PostgreSQL");
    return CLI_OK;
}

const struct cli_command cli_version = {
    .name = "version",
    .summary = "print the version of semel, its compiler and its databases",
    .help = "semel --version prints the same.",
    .run = run,
};
