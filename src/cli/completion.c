/* SPDX-License-Identifier: MIT
 *
 * completion.c: `semel completion`: scripts for bash, zsh and fish, generated from the tables of the commands.
 *
 * Each script finds out which command stands on the line so far, and offers that command's words and options. A script
 * asks nothing of the program, so it stays as it was generated: it is to be generated again after an upgrade.
 *
 * Invariants: whatever a table says reaches the script between single quotes, escaped as that shell wants it.
 */
#include "cli/frame.h"

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
    (void)ctx;
    fputs("    '", stdout);
    put_sh(path);
    fputs("') words='", stdout);
    for (size_t i = 0; command->children != NULL && command->children[i] != NULL; i++) {
        put_sh(command->children[i]->name);
        fputs(" ", stdout);
    }
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        fputs(i > 0 ? " --" : "--", stdout);
        put_sh(option->name);
    }
    fputs("' ;;\n", stdout);
}

static void bash(void)
{
    bool any = false;
    fputs("# bash completion of semel; in ~/.bashrc: source <(semel completion bash)\n"
          "_semel()\n"
          "{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} at='' next words='' i\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        next=\"${at:+$at }${COMP_WORDS[i]}\"\n"
          "        case $next in\n"
          "        ",
          stdout);
    cli_walk(bash_path, &any);
    fputs(") at=$next ;;\n"
          "        esac\n"
          "    done\n"
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
    (void)ctx;
    fputs("    '", stdout);
    put_sh(path);
    fputs("') offers=(\n", stdout);
    for (size_t i = 0; command->children != NULL && command->children[i] != NULL; i++)
        zsh_offer("", command->children[i]->name, command->children[i]->summary);
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
          "    local at='' next word\n"
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
    (void)ctx;
    for (size_t i = 0; command->children != NULL && command->children[i] != NULL; i++)
        fish_line(path, "-f -a", command->children[i]->name, "", command->children[i]->summary);
    for (size_t i = 0; (option = cli_option_at(command, i)) != NULL; i++) {
        char more[16];
        snprintf(more, sizeof(more), "%s%s%.1s", option->value != NULL ? " -r" : "", option->letter != 0 ? " -s " : "",
                 &option->letter);
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
          "end\n",
          stdout);
    fish_lines(NULL, "", &cli_root);
    cli_walk(fish_lines, NULL);
}

/* ---- the command --------------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct cli_args *args)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    (void)cli;
    for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
        if (strcmp(cli_operand(args, 0), shells[i].name) == 0) {
            shells[i].print();
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "there is no completion for '%s'; it must be bash, zsh or fish", cli_operand(args, 0));
}

const struct cli_command cli_completion = {
    .name = "completion",
    .summary = "print a completion script for bash, zsh or fish",
    .operands = "bash|zsh|fish",
    .operands_min = 1,
    .operands_max = 1,
    .no_json = true,
    .help = "Examples\n"
            "  source <(semel completion bash)\n"
            "  semel completion zsh > \"${fpath[1]}/_semel\"\n"
            "  semel completion fish > ~/.config/fish/completions/semel.fish",
    .run = run,
};
