/* SPDX-License-Identifier: MIT
 *
 * frame.h: what the files of the frame share (main.c, parse.c, talk.c, store.c, completion.c), and no subcommand needs.
 *
 * The tree of commands is rooted in cli_root: its children are the words behind `semel`, and their children the second
 * words. It is two deep; everything that walks it relies on that.
 */
#ifndef SEMEL_CLI_FRAME_H
#define SEMEL_CLI_FRAME_H

#include "cli/cli.h"

#define CLI_PATH 64 /* of "inbox ls", with its NUL */

extern const struct cli_command cli_root, cli_help;

struct cli_given {
    const struct cli_option *option;
    const char *value; /* NULL: a flag */
};

struct cli_args {
    struct cli *cli;
    const struct cli_command *command;
    char path[CLI_PATH]; /* "inbox ls"; "" for semel itself */
    struct cli_given *given;
    size_t n_given;
    const char **operands;
    size_t n_operands;
};

/* Finds the command and checks everything that was given to it. 0, or an exit code after cli_fail has spoken. With
 * --help the operands are not counted. Sets cli->json. */
int cli_parse(struct cli *cli, int argc, char **argv, struct cli_args *args);
/* The options of a command one after the other, those that every command has behind its own; NULL: no more. */
const struct cli_option *cli_option_at(const struct cli_command *command, size_t i);
/* Calls `each` for every command of the tree but the root, parents first, in the order of the tables. */
void cli_walk(void (*each)(void *ctx, const char *path, const struct cli_command *command), void *ctx);

/* What `semel COMMAND --help` prints. */
int cli_help_print(FILE *to, const char *path, const struct cli_command *command);

#endif
