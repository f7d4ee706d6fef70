/* SPDX-License-Identifier: MIT
 *
 * parse.c: the command line, by the table of commands.
 *
 * The command's words come first (`semel inbox ls`), then options and operands in any order. --name VALUE,
 * --name=VALUE, -s VALUE, -sVALUE and flags in one (-ab) are understood; -- ends the options, - is an operand.
 *
 * Invariants: nothing is guessed. An unknown word, an option that was given twice, a missing value and an operand too
 * many are refused before anything is done. A separate word that looks like an option is never taken as a value: in
 * `--reason --dry-run` the second word was surely meant as a flag.
 */
#include <assert.h>

#include "cli/frame.h"

static const struct cli_option option_json = {"json", 0, NULL, "print JSON instead of a table"};
static const struct cli_option option_help = {"help", 'h', NULL, "print this text"};
static const struct cli_option option_version = {"version", 0, NULL, "print the version"};

/* ---- the tables ---------------------------------------------------------------------------------- */

const struct cli_option *cli_option_at(const struct cli_command *command, size_t i)
{
    size_t own = 0;
    while (command->options != NULL && command->options[own].name != NULL)
        own++;
    if (i < own)
        return &command->options[i];
    const struct cli_option *more[3] = {NULL};
    size_t n = 0;
    if (command == &cli_root)
        more[n++] = &option_version;
    if (command->children == NULL && !command->no_json)
        more[n++] = &option_json;
    more[n++] = &option_help;
    return i - own < n ? more[i - own] : NULL;
}

bool cli_option_repeats(const struct cli_option *option)
{
    size_t n = option->value != NULL ? strlen(option->value) : 0;
    return n > 3 && strcmp(option->value + n - 3, "...") == 0;
}

const struct cli_command *cli_child(const struct cli_command *command, const char *name)
{
    for (size_t i = 0; command->children != NULL && command->children[i] != NULL; i++)
        if (strcmp(command->children[i]->name, name) == 0)
            return command->children[i];
    return NULL;
}

void cli_walk(void (*each)(void *ctx, const char *path, const struct cli_command *command), void *ctx)
{
    for (size_t i = 0; cli_root.children[i] != NULL; i++) {
        const struct cli_command *verb = cli_root.children[i];
        each(ctx, verb->name, verb);
        for (size_t k = 0; verb->children != NULL && verb->children[k] != NULL; k++) {
            char path[CLI_PATH];
            snprintf(path, sizeof(path), "%s %s", verb->name, verb->children[k]->name);
            each(ctx, path, verb->children[k]);
        }
    }
}

/* ---- complaints ---------------------------------------------------------------------------------- */

/* What other tools call it. */
static const char *synonym(const struct cli_command *parent, const char *word)
{
    static const struct {
        const char *word, *name;
    } all[] = {{"list", "ls"},        {"get", "show"},        {"describe", "show"}, {"cat", "show"},
               {"delete", "discard"}, {"rm", "discard"},      {"skip", "discard"},  {"redrive", "retry"},
               {"replay", "retry"},   {"requeue", "retry"},   {"dump", "export"},   {"start", "run"},
               {"serve", "run"},      {"publish", "send"},    {"put", "send"},      {"validate", "check"},
               {"lint", "check"},     {"upgrade", "migrate"}, {"new", "init"},      {"proxy", "gateway"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(word, all[i].word) == 0 && cli_child(parent, all[i].name) != NULL)
            return all[i].name;
    return NULL;
}

int cli_no_command(const struct cli_command *parent, const char *path, const char *word)
{
    const char *names[CLI_OPTIONS_MAX];
    const char *blank = path[0] != '\0' ? " " : "";
    size_t n = 0;
    for (; parent->children[n] != NULL; n++) {
        assert(n < CLI_OPTIONS_MAX);
        names[n] = parent->children[n]->name;
    }
    const char *other = synonym(parent, word), *near = other != NULL ? other : semel__nearest(word, names, n);
    if (near != NULL)
        return cli_fail(CLI_USAGE, "there is no command '%s%s%s'; did you mean '%s%s%s'?", path, blank, word, path,
                        blank, near);
    return cli_fail(CLI_USAGE, "there is no command '%s%s%s'; semel%s%s --help lists them", path, blank, word, blank,
                    path);
}

static int no_option(const struct cli_args *args, const char *word)
{
    const char *names[CLI_OPTIONS_MAX + 3];
    const char *blank = args->path[0] != '\0' ? " " : "";
    char name[CLI_PATH];
    size_t n = 0;
    for (const struct cli_option *o; (o = cli_option_at(args->command, n)) != NULL; n++) {
        assert(n < CLI_OPTIONS_MAX + 3);
        names[n] = o->name;
    }
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    const char *near = semel__nearest(name, names, n);
    if (near != NULL)
        return cli_fail(CLI_USAGE, "semel%s%s has no option '--%s'; did you mean '--%s'?", blank, args->path, name,
                        near);
    if (args->command->children != NULL)
        return cli_fail(CLI_USAGE, "semel%s%s has no option '--%s'; the command comes first, its options behind it",
                        blank, args->path, name);
    return cli_fail(CLI_USAGE, "semel%s%s has no option '--%s'; semel%s%s --help lists them", blank, args->path, name,
                    blank, args->path);
}

/* ---- one word after the other -------------------------------------------------------------------- */

struct reader {
    struct cli_args *args;
    char **words;
    int n, at;
};

static const struct cli_option *by_name(const struct cli_command *command, struct semel_str name)
{
    const struct cli_option *o = NULL;
    for (size_t i = 0; (o = cli_option_at(command, i)) != NULL; i++)
        if (semel__str_eqz(name, o->name))
            break;
    return o;
}

static const struct cli_option *by_letter(const struct cli_command *command, char letter)
{
    const struct cli_option *o = NULL;
    for (size_t i = 0; (o = cli_option_at(command, i)) != NULL; i++)
        if (o->letter == letter)
            break;
    return o;
}

static bool is_given(const struct cli_args *args, const struct cli_option *option)
{
    for (size_t i = 0; i < args->n_given; i++)
        if (args->given[i].option == option)
            return true;
    return false;
}

/* `value` is what stood in the same word; NULL: nothing did, and the next word is asked. */
static int take_option(struct reader *r, const struct cli_option *option, const char *value)
{
    if (is_given(r->args, option) && !cli_option_repeats(option))
        return cli_fail(CLI_USAGE, "--%s is given twice; once is right", option->name);
    if (option->value == NULL && value != NULL)
        return cli_fail(CLI_USAGE, "--%s takes no value", option->name);
    if (option->value != NULL && value == NULL) {
        const char *next = r->at < r->n ? r->words[r->at] : NULL;
        if (next == NULL)
            return cli_fail(CLI_USAGE, "--%s needs a value: --%s %s", option->name, option->name, option->value);
        if (next[0] == '-' && next[1] == '-')
            return cli_fail(CLI_USAGE, "--%s needs a value, and '%s' looks like an option; if it is meant: --%s=%s",
                            option->name, next, option->name, next);
        value = next;
        r->at++;
    }
    r->args->given[r->args->n_given++] = (struct cli_given){option, value};
    return CLI_OK;
}

static int take_long(struct reader *r, const char *word)
{
    const char *equals = strchr(word, '=');
    size_t n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const struct cli_option *option = by_name(r->args->command, (struct semel_str){word + 2, n - 2});
    if (option == NULL)
        return no_option(r->args, word);
    return take_option(r, option, equals != NULL ? equals + 1 : NULL);
}

/* -n 5, -n5, -hj: letters of flags may share a word, a value takes the rest of it. */
static int take_letters(struct reader *r, const char *word)
{
    for (const char *p = word + 1; *p != '\0'; p++) {
        const struct cli_option *option = by_letter(r->args->command, *p);
        if (option == NULL)
            return cli_fail(CLI_USAGE, "semel%s%s has no option '-%c' (in '%s'); -- ends the options",
                            r->args->path[0] != '\0' ? " " : "", r->args->path, *p, word);
        bool valued = option->value != NULL;
        int code = take_option(r, option, valued && p[1] != '\0' ? p + 1 : NULL);
        if (code != CLI_OK || valued)
            return code;
    }
    return CLI_OK;
}

static int take_words(struct reader *r)
{
    bool ended = false;
    while (r->at < r->n) {
        const char *word = r->words[r->at++];
        int code = CLI_OK;
        if (!ended && strcmp(word, "--") == 0)
            ended = true;
        else if (!ended && word[0] == '-' && word[1] == '-')
            code = take_long(r, word);
        else if (!ended && word[0] == '-' && word[1] != '\0')
            code = take_letters(r, word);
        else
            r->args->operands[r->args->n_operands++] = word;
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

/* The words of the command itself; what follows them is left to take_words. */
static int take_command(struct reader *r)
{
    struct cli_args *args = r->args;
    args->command = &cli_root;
    while (args->command->children != NULL && r->at < r->n && r->words[r->at][0] != '-') {
        const char *word = r->words[r->at++];
        const struct cli_command *child = cli_child(args->command, word);
        if (child == NULL)
            return cli_no_command(args->command, args->path, word);
        size_t n = strlen(args->path);
        snprintf(args->path + n, sizeof(args->path) - n, "%s%s", n > 0 ? " " : "", child->name);
        args->command = child;
    }
    return CLI_OK;
}

/* Options before the command, or -- : a word that is a command is no command there. */
static int late_command(const struct cli_args *args)
{
    const char *word = args->operands[0], *blank = args->path[0] != '\0' ? " " : "";
    if (cli_child(args->command, word) == NULL)
        return cli_no_command(args->command, args->path, word);
    return cli_fail(CLI_USAGE, "the command comes first, its options behind it: semel%s%s %s ...", blank, args->path,
                    word);
}

static int check_operands(const struct cli_args *args)
{
    const struct cli_command *command = args->command;
    if (command->children != NULL) {
        bool root = command == &cli_root;
        if (args->n_operands > 0)
            return late_command(args);
        if (root && (cli_flag(args, "version") || args->n_given == 0))
            return CLI_OK;
        return cli_fail(CLI_USAGE, "semel%s%s needs a command; semel%s%s --help lists them", root ? "" : " ",
                        args->path, root ? "" : " ", args->path);
    }
    if (args->n_operands < command->operands_min)
        return cli_fail(CLI_USAGE, "semel %s needs more: semel %s %s", args->path, args->path, command->operands);
    if (args->n_operands > command->operands_max)
        return cli_fail(CLI_USAGE, "semel %s: '%s' is one word too many; semel %s --help says what is right",
                        args->path, args->operands[command->operands_max], args->path);
    return CLI_OK;
}

int cli_parse(struct cli *cli, int argc, char **argv, struct cli_args *args)
{
    size_t words = argc > 0 ? (size_t)argc : 1;
    *args = (struct cli_args){.cli = cli};
    /* A word holds one value, or flags, each of which is taken once. */
    args->given = semel__arena_alloc(&cli->arena, words + CLI_OPTIONS_MAX + 3, sizeof(*args->given));
    args->operands = semel__arena_alloc(&cli->arena, words, sizeof(*args->operands));
    if (args->given == NULL || args->operands == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    struct reader r = {.args = args, .words = argv, .n = argc, .at = 1};
    int code = take_command(&r);
    if (code == CLI_OK)
        code = take_words(&r);
    if (code != CLI_OK || is_given(args, &option_help))
        return code;
    cli->json = is_given(args, &option_json);
    return check_operands(args);
}

/* ---- what a command asks ------------------------------------------------------------------------- */

/* Asking for an option that the command does not list is a mistake of the command. */
static const struct cli_option *known(const struct cli_args *args, const char *name)
{
    const struct cli_option *option = by_name(args->command, semel__str(name));
    assert(option != NULL);
    return option;
}

const char *cli_values(const struct cli_args *args, const char *name, size_t i)
{
    const struct cli_option *option = known(args, name);
    for (size_t k = 0; k < args->n_given; k++)
        if (args->given[k].option == option && i-- == 0)
            return args->given[k].value;
    return NULL;
}

const char *cli_value(const struct cli_args *args, const char *name)
{
    return cli_values(args, name, 0);
}

bool cli_flag(const struct cli_args *args, const char *name)
{
    return is_given(args, known(args, name));
}

size_t cli_n(const struct cli_args *args)
{
    return args->n_operands;
}

const char *cli_operand(const struct cli_args *args, size_t i)
{
    return i < args->n_operands ? args->operands[i] : NULL;
}
