/* SPDX-License-Identifier: MIT
 *
 * version.c: `semel version`, and `semel --version`.
 */
#include "cli/cli.h"
#include "semel/semel.h"
#include "store/sqlite_store.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static int run(struct cli *cli, const struct cli_args *args)
{
    char about[256] = "";
    (void)args;
    semel__sqlite_about(semel__sqlite_version(), about, sizeof(about));
    if (cli->json) {
        struct cli_object object;
        cli_object_init(&object);
        cli_object_text(&object, "version", semel__str(semel_version()));
        cli_object_text(&object, "compiler", SEMEL_STR(COMPILER));
        cli_object_text(&object, "sqlite", semel__str(about));
        return cli_object_print(&object);
    }
    cli_say(cli, "semel %s", semel_version());
    cli_say(cli, "compiler %s", COMPILER);
    cli_say(cli, "%s", about);
    return CLI_OK;
}

const struct cli_command cli_version = {
    .name = "version",
    .summary = "print the version of semel, its compiler and SQLite",
    .help = "semel --version prints the same.",
    .run = run,
};
