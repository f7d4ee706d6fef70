/* SPDX-License-Identifier: MIT
 *
 * parse.c: the command line, by the table of commands; and --help and `semel help`, which print the same tables, with
 * --json as they are.
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

#define WIDTH 88
#define LEFT_MAX 28 /* of the names of options and commands; longer ones get a line of their own */
#define LEFT_BYTES 96

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

static bool option_repeats(const struct cli_option *option)
{
    size_t n = option->value != NULL ? strlen(option->value) : 0;
    return n > 3 && strcmp(option->value + n - 3, "...") == 0;
}

/* The child of that name; NULL: none. */
static const struct cli_command *child_of(const struct cli_command *command, const char *name)
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
        if (strcmp(word, all[i].word) == 0 && child_of(parent, all[i].name) != NULL)
            return all[i].name;
    return NULL;
}

/* The first command that has this one below it, where that word was left out: `semel retry`. */
static const struct cli_command *above(const struct cli_command *parent, const char *word, const char **ret_name)
{
    for (size_t i = 0; parent->children[i] != NULL; i++) {
        const struct cli_command *child = parent->children[i];
        *ret_name = child_of(child, word) != NULL ? word : synonym(child, word);
        if (*ret_name != NULL)
            return child;
    }
    return NULL;
}

/* "semel: there is no command 'statsu'; did you mean 'status'?" */
static int no_command(const struct cli_command *parent, const char *path, const char *word)
{
    const char *names[CLI_OPTIONS_MAX];
    const char *blank = path[0] != '\0' ? " " : "";
    size_t n = 0;
    for (; parent->children[n] != NULL; n++) {
        assert(n < CLI_OPTIONS_MAX);
        names[n] = parent->children[n]->name;
    }
    const char *other = synonym(parent, word), *below = NULL;
    const struct cli_command *noun = other == NULL ? above(parent, word, &below) : NULL;
    if (noun != NULL)
        return cli_fail(CLI_USAGE, "there is no command '%s%s%s'; did you mean '%s %s'?", path, blank, word, noun->name,
                        below);
    const char *near = other != NULL ? other : semel__nearest(word, names, n);
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
static int parse_option(struct reader *r, const struct cli_option *option, const char *value)
{
    if (is_given(r->args, option) && !option_repeats(option))
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

static int parse_long(struct reader *r, const char *word)
{
    const char *equals = strchr(word, '=');
    size_t n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const struct cli_option *option = by_name(r->args->command, (struct semel_str){word + 2, n - 2});
    if (option == NULL)
        return no_option(r->args, word);
    return parse_option(r, option, equals != NULL ? equals + 1 : NULL);
}

/* -n 5, -n5, -hj: letters of flags may share a word, a value takes the rest of it. */
static int parse_letters(struct reader *r, const char *word)
{
    for (const char *p = word + 1; *p != '\0'; p++) {
        const struct cli_option *option = by_letter(r->args->command, *p);
        if (option == NULL)
            return cli_fail(CLI_USAGE, "semel%s%s has no option '-%c' (in '%s'); -- ends the options",
                            r->args->path[0] != '\0' ? " " : "", r->args->path, *p, word);
        bool valued = option->value != NULL;
        int code = parse_option(r, option, valued && p[1] != '\0' ? p + 1 : NULL);
        if (code != CLI_OK || valued)
            return code;
    }
    return CLI_OK;
}

static int parse_words(struct reader *r)
{
    bool ended = false;
    while (r->at < r->n) {
        const char *word = r->words[r->at++];
        int code = CLI_OK;
        if (!ended && strcmp(word, "--") == 0)
            ended = true;
        else if (!ended && word[0] == '-' && word[1] == '-')
            code = parse_long(r, word);
        else if (!ended && word[0] == '-' && word[1] != '\0')
            code = parse_letters(r, word);
        else
            r->args->operands[r->args->n_operands++] = word;
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

/* The words of the command itself; what follows them is left to parse_words. */
static int parse_command(struct reader *r)
{
    struct cli_args *args = r->args;
    args->command = &cli_root;
    while (args->command->children != NULL && r->at < r->n && r->words[r->at][0] != '-') {
        const char *word = r->words[r->at++];
        const struct cli_command *child = child_of(args->command, word);
        if (child == NULL)
            return no_command(args->command, args->path, word);
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
    if (child_of(args->command, word) == NULL)
        return no_command(args->command, args->path, word);
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
        return cli_fail(CLI_USAGE, "semel %s: '%s' is an unexpected argument; see semel %s --help", args->path,
                        args->operands[command->operands_max], args->path);
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
    int code = parse_command(&r);
    if (code == CLI_OK)
        code = parse_words(&r);
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

/* ---- help: text ----------------------------------------------------------------------------------- */

/* Words from column `left` on, in lines of at most WIDTH. The first line is begun already. */
static void put_wrapped(FILE *to, const char *text, int left)
{
    int column = left;
    while (*text != '\0') {
        int n = (int)strcspn(text, " ");
        if (column > left && column + 1 + n > WIDTH) {
            fprintf(to, "\n%*s", left, "");
            column = left;
        } else if (column > left) {
            fputs(" ", to);
            column++;
        }
        fprintf(to, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputs("\n", to);
}

static void put_line(FILE *to, const char *left, int width, const char *right)
{
    int n = fprintf(to, "  %-*s  ", width, left) - 4;
    if (n > width)
        fprintf(to, "\n  %*s  ", width, "");
    put_wrapped(to, right, width + 4);
}

static void option_text(const struct cli_option *option, char *out, size_t size)
{
    char letter[8] = "";
    if (option->letter != 0)
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    snprintf(out, size, "%s--%s%s%s", letter, option->name, option->value != NULL ? " " : "",
             option->value != NULL ? option->value : "");
}

static int widest(const struct cli_command *command)
{
    char text[LEFT_BYTES];
    size_t width = 0;
    const struct cli_option *option;
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        option_text(option, text, sizeof(text));
        if (strlen(text) > width && strlen(text) <= LEFT_MAX)
            width = strlen(text);
    }
    for (size_t i = 0; command->children != NULL && command->children[i] != NULL; i++)
        if (strlen(command->children[i]->name) > width)
            width = strlen(command->children[i]->name);
    return (int)width;
}

int cli_help_print(FILE *to, const char *path, const struct cli_command *command)
{
    char text[LEFT_BYTES];
    int width = widest(command);
    const char *operands = command->children != NULL ? "COMMAND" : command->operands != NULL ? command->operands : "";
    fprintf(to, "semel%s%s: %s\n\nusage: semel%s%s%s%s%s\n", path[0] != '\0' ? " " : "", path, command->summary,
            path[0] != '\0' ? " " : "", path, command->children != NULL ? "" : " [options]",
            operands[0] != '\0' ? " " : "", operands);
    if (command->children != NULL)
        fputs("\nCommands\n", to);
    for (size_t i = 0; command->children != NULL && command->children[i] != NULL; i++)
        put_line(to, command->children[i]->name, width, command->children[i]->summary);
    fputs("\nOptions\n", to);
    const struct cli_option *option;
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        option_text(option, text, sizeof(text));
        put_line(to, text, width, option->help);
    }
    if (command->help != NULL)
        fprintf(to, "\n%s\n", command->help);
    return CLI_OK;
}

/* ---- the tables as JSON -------------------------------------------------------------------------- */

/* Starts the next element of an array that `buf` holds, without its brackets. */
static void next_element(struct semel_buf *buf)
{
    semel__buf_addz(buf, buf->n > 0 ? ",\n" : "");
}

static void add_option(struct semel_buf *buf, const struct cli_option *option)
{
    struct semel_object object;
    char letter[2] = {option->letter, '\0'};
    semel__object_init(&object);
    semel__object_text(&object, "name", semel__str(option->name));
    semel__object_text(&object, "letter", semel__str(option->letter != 0 ? letter : NULL));
    semel__object_text(&object, "value", semel__str(option->value));
    semel__object_bool(&object, "repeats", option_repeats(option));
    semel__object_text(&object, "help", semel__str(option->help));
    struct semel_str text = semel__object_end(&object);
    next_element(buf);
    semel__buf_add(buf, text.p, text.n);
    semel__object_done(&object);
}

static void add_array(struct semel_object *object, const char *name, struct semel_buf *elements)
{
    struct semel_buf array;
    semel__buf_init(&array, elements->max + 2);
    semel__buf_addz(&array, "[");
    semel__buf_add(&array, elements->p, elements->n);
    semel__buf_addz(&array, "]");
    object->buf.failed |= array.failed || elements->failed;
    semel__object_raw(object, name, semel__buf_str(&array));
    semel__buf_done(&array);
    semel__buf_done(elements);
}

static void add_command(void *ctx, const char *path, const struct cli_command *command)
{
    struct semel_buf *buf = ctx, options;
    struct semel_object object;
    const struct cli_option *option;
    semel__buf_init(&options, 1 << 20);
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++)
        add_option(&options, option);
    semel__object_init(&object);
    semel__object_text(&object, "name", semel__str(path));
    semel__object_text(&object, "summary", semel__str(command->summary));
    semel__object_text(&object, "operands", semel__str(command->operands != NULL ? command->operands : ""));
    semel__object_bool(&object, "group", command->children != NULL);
    semel__object_text(&object, "help", semel__str(command->help));
    add_array(&object, "options", &options);
    struct semel_str text = semel__object_end(&object);
    next_element(buf);
    semel__buf_add(buf, text.p, text.n);
    buf->failed |= object.buf.failed;
    semel__object_done(&object);
}

static const struct {
    int code;
    const char *name, *text;
} exits[] = {
#define X(exit_name, exit_code, exit_text) {exit_code, #exit_name, exit_text},
    CLI_EXIT_MAP(X)
#undef X
};
#define EXITS (sizeof(exits) / sizeof(exits[0]))

static int print_tables(void)
{
    struct semel_object whole;
    struct semel_buf commands, codes;
    semel__buf_init(&commands, 4 << 20);
    semel__buf_init(&codes, 1 << 20);
    cli_walk(add_command, &commands);
    for (size_t i = 0; i < EXITS; i++) {
        next_element(&codes);
        semel__buf_addf(&codes, "{\"code\":%d,\"text\":", exits[i].code);
        semel__json_put_shown(&codes, semel__str(exits[i].text));
        semel__buf_addz(&codes, "}");
    }
    semel__object_init(&whole);
    add_array(&whole, "commands", &commands);
    add_array(&whole, "exit_codes", &codes);
    return cli_object_print(&whole);
}

/* ---- the command --------------------------------------------------------------------------------- */

static int print_exits(void)
{
    for (size_t i = 0; i < EXITS; i++)
        fprintf(stdout, "%4d  %s\n", exits[i].code, exits[i].text);
    return CLI_OK;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const struct cli_command *command = &cli_root;
    char path[CLI_PATH] = "";
    if (cli->json && cli_n(args) > 0)
        return cli_fail(CLI_USAGE, "semel help --json prints all commands; it takes no command");
    if (cli->json)
        return print_tables();
    if (cli_n(args) == 1 && strcmp(cli_operand(args, 0), "exit-codes") == 0)
        return print_exits();
    for (size_t i = 0; i < cli_n(args); i++) {
        const char *word = cli_operand(args, i);
        if (command->children == NULL)
            return cli_fail(CLI_USAGE, "semel %s has no commands of its own; '%s' is an unexpected argument", path,
                            word);
        const struct cli_command *child = child_of(command, word);
        if (child == NULL)
            return no_command(command, path, word);
        size_t n = strlen(path);
        snprintf(path + n, sizeof(path) - n, "%s%s", n > 0 ? " " : "", child->name);
        command = child;
    }
    return cli_help_print(stdout, path, command);
}

const struct cli_command cli_help = {
    .name = "help",
    .summary = "explain a command",
    .operands = "[COMMAND [COMMAND]] | exit-codes",
    .operands_max = 2,
    .help = "With --json the tables of all commands, options and exit codes are printed.\n"
            "\n"
            "Examples\n"
            "  semel help inbox ls\n"
            "  semel help exit-codes",
    .run = run,
};
