/* SPDX-License-Identifier: MIT
 *
 * cli.h: the frame of the command `semel`. One file a subcommand; each is one `const struct cli_command`.
 *
 * The table in main.c lists the commands; parsing, --help, suggestions for what was mistyped, completion, docs/cli.md
 * and the manual all come from these structs. A command prints data with cli_table_* (a table for people, with --json
 * an array or an object for programs) or cli_say (one line for people, silent with --json), and complaints with
 * cli_fail.
 *
 * Invariants: what comes from a message, a database or the environment reaches a terminal only through
 * semel__str_show or the table, which replace control characters. Data goes to stdout, everything else to stderr; a
 * failed write to stdout is an error. The exit codes are those below, and docs/cli.md lists them.
 */
#ifndef SEMEL_CLI_CLI_H
#define SEMEL_CLI_CLI_H

#include <stdio.h>

#include "base/mem.h"
#include "base/object.h"
#include "base/str.h"
#include "core/store.h"

#define CLI_EXIT_MAP(X)                                                                                      \
    X(OK, 0, "done")                                                                                         \
    X(FAILED, 1, "not done, or not all of it; or the books did not balance")                                 \
    X(USAGE, 2, "the command line is wrong")                                                                 \
    X(NOTHING, 3, "there is no such message, or the selection matches nothing")                              \
    X(REFUSED, 4, "refused: a conflict, its status does not allow it, too old without --force, no --reason") \
    X(STORE, 5, "the store is missing, is not one of Semel's, is too new, or fails")                         \
    X(STOPPED, 6, "a bulk command stopped because the cause is still there; it can be resumed")              \
    X(INTERRUPTED, 130, "interrupted; what was done stays done, the rest can be resumed")

enum cli_exit {
#define X(name, code, text) CLI_##name = code,
    CLI_EXIT_MAP(X)
#undef X
};

struct cli_option {
    const char *name;  /* without the dashes */
    char letter;       /* 0: none */
    const char *value; /* what stands for its value in the help ("N", "URL"); NULL: a flag. One that ends with "..."
                        * ("NAME=VALUE...") may be given several times, all others once */
    const char *help;
};
#define CLI_OPTIONS_MAX 24

struct cli_args; /* what was given, after parsing; unknown options never get this far */
const char *cli_value(const struct cli_args *args, const char *name); /* NULL: not given */
/* The i-th value of an option that may be given several times, from 0; NULL: there are no more. */
const char *cli_values(const struct cli_args *args, const char *name, size_t i);
bool cli_flag(const struct cli_args *args, const char *name);
size_t cli_n(const struct cli_args *args); /* operands */
const char *cli_operand(const struct cli_args *args, size_t i);

struct cli {
    const char *program;      /* argv[0], for commands that start themselves again */
    bool json;                /* --json was given */
    bool tty;                 /* stdout is a terminal */
    bool color;               /* it is, and takes colours */
    struct semel_arena arena; /* for one run of the program */
};

struct cli_command {
    const char *name, *summary;
    const char *operands; /* "[ID]..." or "" */
    size_t operands_min, operands_max;
    const char *help;                          /* paragraphs below the options; examples */
    const struct cli_option *options;          /* ended by a NULL name; --help and --json need not be listed */
    bool no_json;                              /* prints no data */
    const struct cli_command *const *children; /* ended by NULL; then run is NULL */
    int (*run)(struct cli *cli, const struct cli_args *args);
};

extern const struct cli_command cli_check, cli_init, cli_run, cli_relay, cli_gateway;
extern const struct cli_command cli_demo, cli_migrate, cli_send, cli_status, cli_inbox, cli_bench, cli_consumer,
    cli_completion, cli_keys, cli_outbox, cli_rewind, cli_tick, cli_version;
extern const struct cli_command cli_reconcile; /* a child of inbox */

/* ---- talking ---- */

/* "semel: TEXT" on stderr, one line whose control characters are replaced; returns `code`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *fmt, ...);
/* "s" behind what there is not one of: "1 message", "2 messages". */
#define CLI_S(n) ((n) == 1 ? "" : "s")
/* "DOING: TEXT" for a status of the store or of core. The exit code follows from it: STORE when the environment fails,
 * REFUSED when the call is not allowed, FAILED when nobody knows. */
int cli_fail_error(semel_status status, const struct semel_error *err, const char *doing);
/* The same where INVALID and PERMANENT mean that a name on the command line cannot be one: USAGE, the text alone. */
int cli_fail_name(semel_status status, const struct semel_error *err, const char *doing);
/* Who acts, for the audit: $SEMEL_USER, else login@host, in the arena. 0, or an exit code. */
int cli_who(struct cli *cli, struct semel_str *ret);
/* What errno says, in words. */
const char *cli_errno(void);
/* A line on stdout for people, whose control characters are replaced, and its newline; nothing with --json. */
__attribute__((format(printf, 2, 3))) void cli_say(const struct cli *cli, const char *fmt, ...);
/* A word as a shell takes it, and a command to be pasted: this program as it was called, `words` (which are quoted
 * already) and --store, unless `store` is NULL; a password in it is not shown. Both live as long as the program
 * runs. */
const char *cli_word(struct cli *cli, const char *word);
const char *cli_again(struct cli *cli, const char *words, const char *store);
/* Asks "QUESTION [y/N] ", unless --yes was given. 0, or an exit code: the answer is no, or there is nobody to ask. */
__attribute__((format(printf, 2, 3))) int cli_confirm(const struct cli_args *args, const char *fmt, ...);
/* What --reason says. 0, or an exit code: it is required and missing. */
int cli_reason(const struct cli_args *args, bool required, struct semel_str *ret);
/* Flushes stdout. FAILED, and cli_fail has spoken, when something could not be written; a reader that has gone
 * (`| head`) is no failure. */
int cli_finish(int code);

/* Reads a settings file. 0, or an exit code: all its mistakes are on stderr, each with its line and a caret. */
struct semel_conf;
int cli_conf_load(const char *file, struct semel_conf **ret);

/* Values of options. false: cli_fail has said what is wrong and what would be right. `name` is for the message. */
bool cli_int(const struct cli_args *args, const char *name, int64_t low, int64_t high, int64_t other, int64_t *ret);
bool cli_duration(const struct cli_args *args, const char *name, int64_t other_us, int64_t *ret_us);
/* What an operand says: its own text, @FILE, or - for stdin; at most max bytes, in the arena. 0, or an exit code. */
int cli_input(struct cli *cli, const char *operand, const char *what, size_t max, struct semel_str *ret);
/* Does the line consist of blanks? */
static inline bool cli_is_blank(struct semel_str line)
{
    size_t n = 0;
    while (n < line.n && strchr(" \t\r\n", line.p[n]) != NULL && line.p[n] != '\0')
        n++;
    return n == line.n;
}

/* ---- long work ---- */

/* From now on SIGINT and SIGTERM are kept until they are asked for. */
void cli_signals_catch(void);
/* Waits that long; true, and at once: there was one, now or before. */
bool cli_interrupted(int64_t wait_us);
/* Waits until stdin has something to read; false: a signal came, or wait_us are over. */
bool cli_stdin_ready(int64_t wait_us);

/* "1200 messages, 400/s, 24%, 9s left" on stderr: some times per second if that is a terminal; with --progress also
 * elsewhere, a line per second, and at the end how long all of it took. */
struct cli_progress {
    int64_t began_us, shown_us;
    bool always; /* --progress */
};
void cli_progress_begin(struct cli_progress *progress, const struct cli_args *args);
/* `part` of the whole is done, from 0 to 1; below 0: nobody knows how much there is. */
void cli_progress_show(struct cli_progress *progress, int64_t done, const char *what, double part);
/* The last line: "5000 messages in 0.6s, 8333/s", if there was one before or --progress asks for it. */
void cli_progress_end(const struct cli_progress *progress, int64_t done, const char *what);

/* ---- the store ---- */

/* --store URL or the environment's SEMEL_STORE, opened as it is. NULL: cli_fail has spoken, *ret_code is the exit
 * code. */
struct semel_store *cli_store_open(const struct cli_args *args, bool create_and_migrate, int *ret_code);
/* The store, opened as it is, and a handle on it; `changes`: who acts is put into the audit. 0, or an exit code. */
struct semel_ops;
int cli_ops_open(struct cli *cli, const struct cli_args *args, bool changes, struct semel_ops *ret);
void cli_ops_close(struct semel_ops *ops);
/* Programs of exec handlers run as the same user: the kernel keeps them from our memory and environment, and no core
 * holds a token (P89). What they start with is theirs: a program that is executed is dumpable again. */
void cli_keep_to_ourselves(void);
/* The drivers that this program has; ended by NULL. */
const struct semel_store_ops *const *cli_store_drivers(void);
/* The URL alone, for what opens by itself. NULL: none was given, or it cannot be one; *ret_code is the exit code. */
const char *cli_store_url(const struct cli_args *args, int *ret_code);
/* INVALID: the password would go to whoever pretends to be the store, and the URL does not ask for that. */
semel_status cli_store_judge(const char *url, struct semel_error *err);
/* Opens without a word. */
semel_status cli_store_try(const char *url, bool create_and_migrate, struct semel_store **ret, struct semel_error *err);
/* Says why a store could not be opened; returns the exit code. */
int cli_store_fail(const char *url, semel_status status, const struct semel_error *err);
/* The same for one that was to be opened as it is, with the command that would help. */
int cli_store_refused(const struct cli_args *args, const char *url, semel_status status, const struct semel_error *err);
/* The URL for people: without the password that may be in it. Lives until the next call. */
const char *cli_store_shown(const char *url);
/* The database behind it in one line, and the size of its write-ahead log; SEMEL_NONE: it has none of its own. */
void cli_store_about(struct semel_store *store, char *out, size_t size);
int64_t cli_store_wal_bytes(struct semel_store *store);
/* A kind of store and its migrations. NULL: there is no such kind. */
struct semel_migration;
struct cli_store_kind {
    const char *name;
    const struct semel_migration *migrations;
    const size_t *n;
    bool recorded; /* a migration's own SQL records that it was run */
};
const struct cli_store_kind *cli_store_kind(const char *name);
const struct cli_store_kind *cli_store_kind_of(const char *url);
/* PostgreSQL is meant, and this program was built without it. */
bool cli_store_left_out(const char *kind_or_url);
#define CLI_STORE_OPTION                                                                                      \
    {                                                                                                         \
        "store", 0, "URL", "the store, e.g. sqlite:shop.db or postgres://app@db/shop (default: $SEMEL_STORE)" \
    }

/* ---- tables ---- */

struct cli_table;
enum cli_type { CLI_TEXT, CLI_NUMBER, CLI_TIME, CLI_STATUS }; /* STATUS: a text, in its colour */
struct cli_column {
    const char *name; /* of the JSON member; upper case is the heading */
    enum cli_type type;
    bool narrow; /* may be cut to fit the terminal */
};
/* NULL: no memory. */
struct cli_table *cli_table_new(const struct cli *cli, const struct cli_column *columns, size_t n);
/* Values fill the columns from left to right, then the next row. TIME is microseconds, for people "3 min ago";
 * SEMEL_NONE and "not given" are blank, and null in JSON. */
void cli_table_text(struct cli_table *table, struct semel_str value);
void cli_table_number(struct cli_table *table, int64_t value);
void cli_table_fixed(struct cli_table *table, double value, int digits);
/* Prints and frees. With --json an array of objects. FAILED: no memory. */
int cli_table_print(struct cli_table *table);

/* ---- rows of the inbox and of the outbox, and keys ---- */

/* The options that choose rows; each list is ended by NULL. */
struct cli_filter {
    const char *const *whose; /* texts that only narrow what others choose */
    const char *const *texts, *const *flags;
};
#define CLI_FILTER_MAX 64
/* As ops reads them, at most CLI_FILTER_MAX, with --limit and --after where a list has pages. 0, or an exit code. */
struct semel_option;
int cli_filter_read(const struct cli_args *args, const struct cli_filter *filter, bool pages, struct semel_option *ret,
                    size_t *ret_n);
/* One that was given, besides those of `whose`; NULL: none. */
const char *cli_filter_given(const struct cli_args *args, const struct cli_filter *filter);
/* Says on stderr how to get the next page: behind `after`. */
void cli_filter_next(const struct cli_args *args, const struct cli_filter *filter, const char *command, size_t limit,
                     struct semel_str after);
void cli_filter_next_number(const struct cli_args *args, const struct cli_filter *filter, const char *command,
                            size_t limit, int64_t after);

/* A table of rows, without columns in which no row has anything. */
struct cli_rows {
    const struct cli_column *columns;
    size_t n_columns; /* at most 16 */
    /* The cell's text, or, where the column is no text, its number. */
    struct semel_str (*cell)(size_t column, const void *ctx, size_t row, int64_t *ret_number);
    const void *ctx;
    size_t n;
    const char *none;                                      /* what is said where there are no rows; NULL: nothing */
    void (*json)(struct semel_buf *buf, const void *rows); /* the document for --json; NULL: the table as JSON */
};
int cli_rows_print(const struct cli *cli, const struct cli_rows *rows);

/* One row: as JSON; or its fields, then why it is as it is and what to do about it. */
struct cli_shown {
    const void *facts;
    void (*json)(struct semel_buf *buf, const void *facts);
    void (*say)(const struct cli *cli, const void *facts);
    void (*explain)(const void *facts, struct semel_buf *why, struct semel_buf *next);
};
int cli_shown_print(const struct cli *cli, const struct cli_shown *shown);

/* Does one thing after the other, and no more where the store fails. All done: 0. None done: what the first one met.
 * Some done: FAILED, not all of it. With --json, `json` puts what came of them. */
int cli_each(const struct cli *cli, size_t n, int (*one)(void *ctx, size_t i),
             void (*json)(struct semel_buf *buf, const void *ctx), void *ctx);
/* Says what came of a command to what has this name: done (or, with --dry-run, it would be), else refused, or there is
 * none. 0, or an exit code. */
int cli_answer(const struct cli *cli, bool done, bool none, const char *name, const char *text);
/* The reason of a command, checked with all that it was given. 0, or an exit code. */
struct semel_instruction;
int cli_instruction_read(const struct cli_args *args, struct semel_instruction *given);
#define CLI_REASON_OPTIONS                                                                               \
    {"reason", 'r', "TEXT", "why; goes to the audit log with your name ($SEMEL_USER, else your login)"}, \
    {                                                                                                    \
        "dry-run", 0, NULL, "say what would happen, and change nothing"                                  \
    }

/* A line "NAME  VALUE" of one row; what is not given is left out. */
void cli_field(const struct cli *cli, const char *name, struct semel_str value);
void cli_field_when(const struct cli *cli, const char *name, int64_t us, int64_t now_us);
void cli_field_payload(const struct cli *cli, struct semel_str payload);
struct semel_act_line;
/* Says on stderr what was done last to what is not there any more, if that is known. */
void cli_acts_fail(const struct semel_act_line *acts, size_t n);
/* All of them, oldest first. */
void cli_field_acts(const struct cli *cli, const struct semel_act_line *acts, size_t n, bool newest_first);
/* The bytes as they are; on a terminal only text. 0, or an exit code. */
int cli_payload_print(struct semel_str payload);
#define CLI_PAYLOAD_TEXT_MAX ((size_t)SEMEL_PAYLOAD_HARD_MAX / 3 * 4 + 64) /* of a line: the largest in base64 */
/* The bytes of the member payload_base64 of a line. */
semel_status cli_payload_decode(const struct semel_json *line, struct semel_arena *arena, struct semel_str *ret,
                                struct semel_error *err);

/* A time as 2026-11-15T22:48:07Z, or as "3 min ago" / "in 40 s" relative to now; SEMEL_NONE is "". */
void cli_time(int64_t us, char *out, size_t size);
void cli_ago(int64_t us, int64_t now_us, char *out, size_t size);

/* Prints the object on stdout with a newline, and frees it. */
int cli_object_print(struct semel_object *object);
/* Prints JSON that is ready, and frees the buffer. */
#define CLI_JSON_MAX ((size_t)512 << 20)
int cli_json_print(struct semel_buf *json);
int cli_json_of(void (*put)(struct semel_buf *json, const void *ctx), const void *ctx);

#endif
