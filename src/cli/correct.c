/* SPDX-License-Identifier: MIT
 *
 * correct.c: `semel inbox retry --payloads`: dead letters whose payloads are corrected, by lines as `semel inbox
 * export` writes them. Of a line only id, source and payload, or payload_base64, are read.
 *
 * Invariants: each line is a transaction of its own. A line that is bad, or whose message is not one to be corrected,
 * is named and left alone: the same lines may be given again after an interruption.
 */
#include "base/error.h"
#include "base/json.h"
#include "cli/cli.h"
#include "ops/ops.h"

#define LINES_MAX ((size_t)120 << 20) /* of the whole file */

struct lines {
    struct cli *cli;
    const struct cli_args *args;
    struct semel_ops *ops;
    struct semel_instruction given;
    struct cli_progress progress;
    int64_t n, done, refused, bad;
};

static bool is_blank(struct semel_str line)
{
    size_t n = 0;
    while (n < line.n && strchr(" \t\r\n", line.p[n]) != NULL && line.p[n] != '\0')
        n++;
    return n == line.n;
}

/* A string is the payload itself; anything else is kept as the JSON that it is. */
static semel_status read_line(struct lines *run, struct semel_str line, struct semel_str *ret_id,
                              struct semel_str *ret_source, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_str raw = semel__json_find(line, SEMEL_STR("/payload"));
    enum semel_json_kind kind[3] = {SEMEL_JSON_MISSING, SEMEL_JSON_MISSING, SEMEL_JSON_MISSING};
    semel_status status = semel__json_parse(&json, line, LINES_MAX, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, SEMEL_STR("/id"), run->ops->arena, &kind[0], ret_id, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, SEMEL_STR("/source"), run->ops->arena, &kind[1], ret_source, err);
    if (status == SEMEL_OK)
        status = semel__json_get(json, SEMEL_STR("/payload"), run->ops->arena, &kind[2], &run->given.payload, err);
    if (status == SEMEL_OK && semel__str_given(semel__json_find(line, SEMEL_STR("/payload_base64")))) {
        if (kind[2] != SEMEL_JSON_MISSING)
            status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                                 "payload and payload_base64 are both there; give one of them");
        else
            status = cli_payload_decode(json, run->ops->arena, &run->given.payload, err);
        kind[2] = SEMEL_JSON_STRING;
    }
    semel__json_free(json);
    if (status != SEMEL_OK)
        return status;
    if (kind[2] != SEMEL_JSON_STRING)
        run->given.payload = raw;
    if (kind[0] != SEMEL_JSON_STRING || kind[2] == SEMEL_JSON_MISSING || kind[2] == SEMEL_JSON_NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "it must be an object with id, a string, and payload, which is not null");
    if (kind[1] != SEMEL_JSON_STRING)
        *ret_source = semel__str(cli_value(run->args, "source"));
    return SEMEL_OK;
}

static int bad_line(struct lines *run, const char *text)
{
    run->bad++;
    return cli_fail(CLI_FAILED, "line %lld: %s", (long long)run->n, text);
}

static int take_line(struct lines *run, struct semel_str line)
{
    struct semel_str id, source = {0};
    struct semel_find found;
    struct semel_answer answer;
    struct semel_error err = {0};
    char shown[80];
    if (read_line(run, line, &id, &source, &err) != SEMEL_OK)
        return bad_line(run, err.text);
    semel__str_show(shown, sizeof shown, id);
    semel_status status = semel__ops_find(run->ops, semel__str(cli_value(run->args, "consumer")), source, id, true,
                                          &found, &err);
    if (status == SEMEL_INVALID && err.cls == SEMEL_CLASS_PERMANENT)
        return bad_line(run, err.text);
    if (status == SEMEL_OK && found.found != SEMEL_FOUND)
        return bad_line(run, found.found == SEMEL_FOUND_SEVERAL ? "it is the id of several messages: name the source"
                                                                : "there is no such message that can be read");
    if (status == SEMEL_OK)
        status = semel__ops_command(run->ops, &run->given, found.rows, cli_flag(run->args, "dry-run"), &answer, &err);
    if (status != SEMEL_OK) {
        run->n--; /* it is to be given again */
        return cli_fail_error(status, &err, "correcting the messages") == CLI_STORE ? CLI_STORE : CLI_FAILED;
    }
    const bool done = answer.kind == SEMEL_DID || answer.kind == SEMEL_WOULD;
    run->done += done;
    run->refused += !done;
    return done ? CLI_OK : cli_fail(CLI_REFUSED, "line %lld: %s %s", (long long)run->n, shown, answer.text);
}

/* Until the end, a signal, or a store that fails. */
static int take_all(struct lines *run, struct semel_str text)
{
    struct semel_arena arena, *before = run->ops->arena;
    const double size = (double)text.n;
    int code = CLI_OK, first = CLI_OK;
    semel__arena_init(&arena, CLI_JSON_MAX);
    run->ops->arena = &arena;
    while (code != CLI_STORE && text.n > 0 && !cli_interrupted(0)) {
        const char *end = memchr(text.p, '\n', text.n);
        const struct semel_str line = {text.p, end != NULL ? (size_t)(end - text.p) : text.n};
        const size_t taken = line.n + (end != NULL);
        run->n++;
        semel__arena_reset(&arena);
        code = is_blank(line) ? CLI_OK : take_line(run, line);
        first = first == CLI_OK ? code : first;
        text = (struct semel_str){text.p + taken, text.n - taken};
        cli_progress_show(&run->progress, run->n, "lines", 1 - (double)text.n / size);
    }
    cli_progress_end(&run->progress, run->n, run->n == 1 ? "line" : "lines");
    run->ops->arena = before;
    semel__arena_done(&arena);
    return cli_interrupted(0) ? CLI_INTERRUPTED : first;
}

static int print_sum(const struct lines *run)
{
    struct semel_object object;
    if (!run->cli->json) {
        cli_say(run->cli, "%lld line%s: %lld corrected, %lld refused, %lld bad", (long long)run->n, CLI_S(run->n),
                (long long)run->done, (long long)run->refused, (long long)run->bad);
        return CLI_OK;
    }
    semel__object_init(&object);
    semel__object_number(&object, "lines", run->n);
    semel__object_number(&object, "corrected", run->done);
    semel__object_number(&object, "refused", run->refused);
    semel__object_number(&object, "bad", run->bad);
    return cli_object_print(&object);
}

int cli_correct_lines(struct cli *cli, const struct cli_args *args, struct semel_ops *ops,
                      const struct semel_instruction *given)
{
    const char *what = cli_value(args, "payloads");
    struct lines run = {.cli = cli, .args = args, .ops = ops, .given = *given};
    struct semel_str text;
    if (strcmp(what, "-") != 0 && what[0] != '@')
        return cli_fail(CLI_USAGE, "--payloads is '%s'; it must be @FILE, or - for stdin", what);
    if (cli_value(args, "consumer") == NULL)
        return cli_fail(CLI_USAGE, "--consumer is needed: a line does not name it");
    int code = cli_input(cli, what, "what --payloads names", LINES_MAX, &text);
    if (code != CLI_OK)
        return code;
    cli_signals_catch();
    cli_progress_begin(&run.progress, args);
    code = take_all(&run, text);
    int printed = print_sum(&run);
    if (printed != CLI_OK)
        return printed;
    return code != CLI_OK && code != CLI_INTERRUPTED && code != CLI_STORE && run.done > 0 ? CLI_FAILED : code;
}
