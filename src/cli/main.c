/* SPDX-License-Identifier: MIT
 *
 * main.c: the program `semel`. The table of its commands, and the way from the command line to one of them.
 *
 * Invariants: the descriptors 0, 1 and 2 are open before anything else is, so that no database can get the number of
 * stdout; a closed one fails every read and write. A reader that goes away is seen as a failed write, not as a signal.
 */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/frame.h"

#define ARENA_MAX ((size_t)256 << 20)

static const struct cli_command *const commands[] = {
    &cli_init,   &cli_check,
#ifdef SEMEL_WITH_RUN
    &cli_run,    &cli_relay,    &cli_gateway,
#endif
    &cli_demo,   &cli_migrate,  &cli_send,    &cli_tick,       &cli_status,  &cli_inbox, &cli_outbox, &cli_keys,
    &cli_rewind, &cli_consumer, &cli_bench,   &cli_completion, &cli_version, &cli_help,  NULL,
};

const struct cli_command cli_root = {
    .name = "semel",
    .summary = "makes every message take effect once",
    .operands = "COMMAND",
    .children = commands,
    .help = "semel COMMAND --help says more about a command, semel help exit-codes what the exit codes mean.\n"
            "Try: semel demo",
};

/* Opened the wrong way round: what was closed stays of no use. */
static void keep_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0)
            _exit(CLI_FAILED);
}

/* https://no-color.org */
static bool takes_colors(bool tty)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM"); /* NOLINT(concurrency-mt-unsafe): no threads */
    return tty && (none == NULL || none[0] == '\0') && term != NULL && strcmp(term, "dumb") != 0;
}

static int run(struct cli *cli, int argc, char **argv)
{
    struct cli_args args;
    int code = cli_parse(cli, argc, argv, &args);
    if (code != CLI_OK)
        return code;
    bool alone = args.command == &cli_root && !cli_flag(&args, "version");
    if (alone || cli_flag(&args, "help"))
        return cli_help_print(stdout, args.path, args.command);
    if (args.command == &cli_root) /* --version */
        return cli_version.run(cli, &args);
    return args.command->run(cli, &args);
}

int main(int argc, char **argv)
{
    keep_standard_descriptors();
    signal(SIGPIPE, SIG_IGN);
    /* Widths of columns are counted in characters, whatever the user's locale is: all text is UTF-8. */
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): there are no threads */
    setlocale(LC_CTYPE, "C.UTF-8");
    struct cli cli = {.program = argc > 0 ? argv[0] : "semel", .tty = isatty(STDOUT_FILENO) == 1};
    cli.color = takes_colors(cli.tty);
    semel__arena_init(&cli.arena, ARENA_MAX);
    int code = cli_finish(run(&cli, argc, argv));
    semel__arena_done(&cli.arena);
    return code;
}
