/* SPDX-License-Identifier: MIT
 *
 * send.h: what the two files of `semel send` share.
 */
#ifndef SEMEL_CLI_SEND_H
#define SEMEL_CLI_SEND_H

#include "cli/cli.h"
#include "semel/semel.h"

#define SEND_VERSION_MAX (INT64_MAX - 1) /* the one behind it must be a number, too */

/* What came of one message, in a word and in a sentence. */
struct send_answer {
    const char *word, *text;
    int code;
};
struct send_answer send_answer(const struct semel_verdict *verdict);
/* Is it the input that is wrong, and not the store? */
bool send_is_input(semel_status status, const struct semel_error *err);

/* One JSON object a line of stdin. Members that a line does not have are those of `common`. `grouped`: many lines a
 * commit, which SQLite can do. */
int send_lines(const struct cli *cli, struct semel *s, const struct semel_msg *common, bool grouped);

#endif
