/* SPDX-License-Identifier: MIT
 *
 * help.c: what --help prints, and `semel help`. All of it is read from the tables of the commands; with --json the
 * tables themselves are printed.
 */
#include "cli/frame.h"

#define WIDTH 88
#define LEFT_MAX 28 /* of the names of options and commands; longer ones get a line of their own */
#define LEFT_BYTES 96

/* ---- text ---------------------------------------------------------------------------------------- */

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
    semel__object_bool(&object, "repeats", cli_option_repeats(option));
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
            return cli_fail(CLI_USAGE, "semel %s has no commands of its own; '%s' is one word too many", path, word);
        const struct cli_command *child = cli_child(command, word);
        if (child == NULL)
            return cli_no_command(command, path, word);
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
