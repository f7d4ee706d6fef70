/* SPDX-License-Identifier: MIT
 *
 * completion.c: `semel completion`: scripts for bash, zsh and fish, generated from the tables of the commands.
 *
 * Each script finds out which command stands on the line so far, and offers that command's words and options; behind
 * an option that takes a few known values these, and behind a comma the next one where it takes several; and behind
 * --consumer the consumers of the store, which `semel completion consumers` prints. All else stays as it was generated:
 * a script is to be generated again after an upgrade.
 *
 * Invariants: whatever a table says reaches the script between single quotes, escaped as that shell wants it.
 */
#include "base/error.h"
#include "cli/frame.h"
#include "conf/conf.h"
#include "core/relay.h"
#include "ops/ops.h"

#define CONSUMERS "semel completion consumers 2>/dev/null" /* by $SEMEL_STORE */
#define WORDS_MAX 256
#define NAMES_MAX 1000

/* ---- values -------------------------------------------------------------------------------------- */

static void add_word(char out[WORDS_MAX], const char *word)
{
    const size_t n = strlen(out);
    snprintf(out + n, WORDS_MAX - n, "%s%s", n > 0 ? " " : "", word);
}

/* Those that no other table has. */
static const struct {
    const char *path, *option, *words;
} few[] = {{"init", "do", "sql http exec pull"},
           {"migrate", "store-kind", "sqlite postgres"},
           {"inbox ls", "group-by", "error"},
           {"keys ls", "status", "processing unknown completed"}};

/* What may stand behind the option, with blanks between; false: that is not known. */
static bool words_of(const char *path, const struct cli_option *option, char out[WORDS_MAX])
{
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); i++)
        if (strcmp(path, few[i].path) == 0 && strcmp(option->name, few[i].option) == 0)
            add_word(out, few[i].words);
    if (out[0] != '\0' || option->value == NULL)
        return out[0] != '\0';
    if (strcmp(path, "init") == 0 && strcmp(option->name, "from") == 0) {
        for (size_t i = 0; semel__broker_kinds[i] != NULL; i++)
            add_word(out, semel__broker_kinds[i]->name);
        add_word(out, "rabbitmq");
    } else if (strcmp(option->name, "status") == 0 && strncmp(path, "outbox", 6) == 0) {
        for (enum semel_event_status s = SEMEL_EVENT_CREATED; s <= SEMEL_EVENT_PUBLISHED; s++)
            add_word(out, semel__event_status_name(s));
    } else if (strcmp(option->name, "status") == 0) {
        for (enum semel_row_status s = SEMEL_ROW_ABSENT + 1; s < SEMEL_ROW_COUNT; s++)
            add_word(out, semel__row_status_name(s));
    }
    return out[0] != '\0';
}

/* May several values stand behind the option, with commas between? */
static bool takes_list(const struct cli_option *option)
{
    const size_t n = strlen(option->value);
    return n > 3 && strcmp(option->value + n - 3, "...") == 0;
}

/* The i-th word that may follow the command, and what it means; NULL: there is none. */
static const char *word_at(const struct cli_command *command, size_t i, const char **ret_text)
{
    static const char *const shells[] = {"bash", "zsh", "fish", NULL};
    *ret_text = "the script for this shell";
    if (command == &cli_completion || command->children == NULL || command->children[i] == NULL)
        return command == &cli_completion ? shells[i] : NULL;
    *ret_text = command->children[i]->summary;
    return command->children[i]->name;
}

static bool is_consumer(const struct cli_option *option)
{
    return strcmp(option->name, "consumer") == 0 && option->value != NULL;
}

/* ---- quoting ------------------------------------------------------------------------------------- */

/* bash and zsh: the quote is left, written by itself and entered again. */
static void put_sh(const char *text)
{
    for (; *text != '\0'; text++)
        fputs(*text == '\'' ? "'\\''" : (char[2]){*text, '\0'}, stdout);
}

/* What zsh's _describe reads as the end of the name. */
static void put_zsh(const char *text)
{
    for (; *text != '\0'; text++)
        fputs(*text == '\'' ? "'\\''" : *text == ':' ? "\\:" : (char[2]){*text, '\0'}, stdout);
}

static void put_fish(const char *text)
{
    for (; *text != '\0'; text++)
        fputs(*text == '\'' ? "\\'" : *text == '\\' ? "\\\\" : (char[2]){*text, '\0'}, stdout);
}

/* ---- bash ---------------------------------------------------------------------------------------- */

static void bash_path(void *ctx, const char *path, const struct cli_command *command)
{
    bool *any = ctx;
    (void)command;
    fputs(*any ? " | '" : "'", stdout);
    put_sh(path);
    fputs("'", stdout);
    *any = true;
}

static void bash_words(void *ctx, const char *path, const struct cli_command *command)
{
    const struct cli_option *option;
    const char *word, *text;
    (void)ctx;
    fputs("    '", stdout);
    put_sh(path);
    fputs("') words='", stdout);
    for (size_t i = 0; (word = word_at(command, i, &text)) != NULL; i++) {
        put_sh(word);
        fputs(" ", stdout);
    }
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        fputs(i > 0 ? " --" : "--", stdout);
        put_sh(option->name);
    }
    fputs("' ;;\n", stdout);
}

/* How each shell offers the names of consumers. They come from the store: none is ever expanded by the shell. */
static char bash_names[] = "_semel_names \"$cur\" < <(" CONSUMERS ")";
static char zsh_names[] = "compadd -- ${(f)\"$(" CONSUMERS ")\"}";

/* 'inbox ls --status' | 'inbox ls -s') values='...' list=, ;; */
static void bash_values(void *ctx, const char *path, const struct cli_command *command)
{
    const struct cli_option *option;
    char words[WORDS_MAX];
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        const bool known = words_of(path, option, words);
        if (!known && !is_consumer(option))
            continue;
        printf("    '%s --%s'", path, option->name);
        if (option->letter != 0)
            printf(" | '%s -%c'", path, option->letter);
        if (known)
            printf(") values='%s'%s ;;\n", words, takes_list(option) ? " list=," : "");
        else
            printf(") %s; return ;;\n", (const char *)ctx);
    }
}

static void bash(void)
{
    bool any = false;
    fputs("# bash completion of semel; in ~/.bashrc: source <(semel completion bash)\n"
          "_semel_names()\n"
          "{\n"
          "    local name\n"
          "    while IFS= read -r name; do\n"
          "        [[ $name != \"$1\"* ]] || COMPREPLY+=(\"$(printf %q \"$name\")\")\n"
          "    done\n"
          "}\n"
          "_semel()\n"
          "{\n"
          "    COMPREPLY=()\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} at='' next words='' values='' list='' i\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        next=\"${at:+$at }${COMP_WORDS[i]}\"\n"
          "        case $next in\n"
          "        ",
          stdout);
    cli_walk(bash_path, &any);
    fputs(") at=$next ;;\n"
          "        esac\n"
          "    done\n"
          "    case \"$at ${COMP_WORDS[COMP_CWORD - 1]}\" in\n",
          stdout);
    cli_walk(bash_values, bash_names);
    fputs("    esac\n"
          "    if [ -n \"$values\" ]; then\n"
          "        [[ -n $list && $cur == *,* ]] && list=${cur%,*}, || list=''\n"
          "        COMPREPLY=($(compgen -P \"$list\" -W \"$values\" -- \"${cur#\"$list\"}\"))\n"
          "        return\n"
          "    fi\n"
          "    case $at in\n",
          stdout);
    bash_words(NULL, "", &cli_root);
    cli_walk(bash_words, NULL);
    fputs("    esac\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
          "}\n"
          "complete -o default -F _semel semel\n",
          stdout);
}

/* ---- zsh ----------------------------------------------------------------------------------------- */

static void zsh_offer(const char *dashes, const char *name, const char *text)
{
    fputs("        '", stdout);
    fputs(dashes, stdout);
    put_zsh(name);
    fputs(":", stdout);
    put_zsh(text);
    fputs("'\n", stdout);
}

static void zsh_offers(void *ctx, const char *path, const struct cli_command *command)
{
    const struct cli_option *option;
    const char *word, *text;
    (void)ctx;
    fputs("    '", stdout);
    put_sh(path);
    fputs("') offers=(\n", stdout);
    for (size_t i = 0; (word = word_at(command, i, &text)) != NULL; i++)
        zsh_offer("", word, text);
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++)
        zsh_offer("--", option->name, option->help);
    fputs("        ) ;;\n", stdout);
}

static void zsh(void)
{
    bool any = false;
    fputs("#compdef semel\n"
          "# zsh completion of semel; once: semel completion zsh > \"${fpath[1]}/_semel\"\n"
          "_semel()\n"
          "{\n"
          "    local at='' next word values='' list=''\n"
          "    local -a offers\n"
          "    for word in \"${(@)words[2,CURRENT-1]}\"; do\n"
          "        next=\"${at:+$at }$word\"\n"
          "        case $next in\n"
          "        (",
          stdout);
    cli_walk(bash_path, &any);
    fputs(") at=$next ;;\n"
          "        esac\n"
          "    done\n"
          "    case \"$at ${words[CURRENT-1]}\" in\n",
          stdout);
    cli_walk(bash_values, zsh_names);
    fputs("    esac\n"
          "    if [ -n \"$values\" ]; then\n"
          "        [ -z \"$list\" ] || compset -P '*,'\n"
          "        compadd -- ${=values}\n"
          "        return\n"
          "    fi\n"
          "    case $at in\n",
          stdout);
    zsh_offers(NULL, "", &cli_root);
    cli_walk(zsh_offers, NULL);
    fputs("    esac\n"
          "    _describe 'semel' offers || _files\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _semel ]; then # loaded by its first use\n"
          "    _semel \"$@\"\n"
          "else\n"
          "    compdef _semel semel\n"
          "fi\n",
          stdout);
}

/* ---- fish ---------------------------------------------------------------------------------------- */

static void fish_path(void *ctx, const char *path, const struct cli_command *command)
{
    (void)ctx;
    (void)command;
    fputs(" '", stdout);
    put_fish(path);
    fputs("'", stdout);
}

static void fish_line(const char *path, const char *flag, const char *name, const char *more, const char *text)
{
    fputs("complete -c semel -n \"__semel_at '", stdout);
    put_fish(path);
    fputs("'\" ", stdout);
    fputs(flag, stdout);
    fputs(" '", stdout);
    put_fish(name);
    fputs("'", stdout);
    fputs(more, stdout);
    fputs(" -d '", stdout);
    put_fish(text);
    fputs("'\n", stdout);
}

static void fish_lines(void *ctx, const char *path, const struct cli_command *command)
{
    const struct cli_option *option;
    const char *word, *text;
    (void)ctx;
    for (size_t i = 0; (word = word_at(command, i, &text)) != NULL; i++)
        fish_line(path, "-f -a", word, "", text);
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        char more[2 * WORDS_MAX], words[WORDS_MAX];
        size_t n = (size_t)snprintf(more, sizeof(more), "%s%s%.1s", option->value != NULL ? " -r" : "",
                                    option->letter != 0 ? " -s " : "", &option->letter);
        if (is_consumer(option))
            snprintf(more + n, sizeof(more) - n, " -f -a '(" CONSUMERS ")'");
        else if (words_of(path, option, words))
            snprintf(more + n, sizeof(more) - n, takes_list(option) ? " -f -a '(__semel_list %s)'" : " -f -a '%s'",
                     words);
        fish_line(path, "-l", option->name, more, option->help);
    }
}

static void fish(void)
{
    fputs("# fish completion of semel; once: semel completion fish > ~/.config/fish/completions/semel.fish\n"
          "function __semel_at\n"
          "    set -l at\n"
          "    for word in (commandline -opc)[2..-1]\n"
          "        set -l next (string trim -- \"$at $word\")\n"
          "        if contains -- $next",
          stdout);
    cli_walk(fish_path, NULL);
    fputs("\n"
          "            set at $next\n"
          "        end\n"
          "    end\n"
          "    test \"$at\" = \"$argv[1]\"\n"
          "end\n"
          "function __semel_list\n"
          "    set -l before (string replace -r '[^,]*$' '' -- (commandline -ct))\n"
          "    printf '%s\\n' \"$before\"$argv\n"
          "end\n",
          stdout);
    fish_lines(NULL, "", &cli_root);
    cli_walk(fish_lines, NULL);
}

/* ---- the command --------------------------------------------------------------------------------- */

/* One name per line. */
static int print_consumers(const struct cli_args *args)
{
    struct semel_store *store = NULL;
    struct semel_error err = {0};
    struct semel_arena arena;
    struct semel_str *names = NULL;
    size_t n = 0;
    char name[SEMEL_ID_MAX + 1];
    int code = CLI_OK;
    const char *url = cli_store_url(args, &code);
    if (url == NULL || cli_store_try(url, false, &store, &err) != SEMEL_OK)
        return code != CLI_OK ? code : CLI_STORE;
    semel__arena_init(&arena, (size_t)1 << 20);
    if (semel_store_consumers(store, (struct semel_str){0}, NAMES_MAX, &arena, &names, &n, &err) == SEMEL_OK)
        for (size_t i = 0; i < n; i++) {
            semel__str_show(name, sizeof name, names[i]);
            puts(name);
        }
    semel__arena_done(&arena);
    semel_store_close(store);
    return CLI_OK;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    (void)cli;
    if (strcmp(cli_operand(args, 0), "consumers") == 0)
        return print_consumers(args);
    for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
        if (strcmp(cli_operand(args, 0), shells[i].name) == 0) {
            shells[i].print();
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "there is no completion for '%s'; it must be bash, zsh or fish", cli_operand(args, 0));
}

static const struct cli_option completion_options[] = {CLI_STORE_OPTION, {NULL, 0, NULL, NULL}};

const struct cli_command cli_completion = {
    .name = "completion",
    .summary = "print a completion script for bash, zsh or fish",
    .operands = "bash|zsh|fish|consumers",
    .options = completion_options,
    .operands_min = 1,
    .operands_max = 1,
    .no_json = true,
    .help = "The scripts offer commands, options, the values of some of these such as statuses, and the consumers of\n"
            "the store that $SEMEL_STORE names: semel completion consumers prints these, one per line.\n"
            "\n"
            "Examples\n"
            "  source <(semel completion bash)\n"
            "  semel completion zsh > \"${fpath[1]}/_semel\"\n"
            "  semel completion fish > ~/.config/fish/completions/semel.fish",
    .run = run,
};
