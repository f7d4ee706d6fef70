/* SPDX-License-Identifier: MIT
 *
 * settings.h: what commands that read a file of settings share.
 */
#ifndef SEMEL_CLI_SETTINGS_H
#define SEMEL_CLI_SETTINGS_H

#include "cli/cli.h"
#include "conf/conf.h"

/* Prints all of them on stderr, each with its line and a caret; returns the exit code. */
int cli_conf_mistakes(const char *file, const struct semel_conf_mistakes *mistakes);

#endif
