/* SPDX-License-Identifier: MIT
 *
 * send_lines.c: `semel send --lines`: one JSON object a line of stdin, one message each.
 *
 * A line is parsed strictly (base/json.h); then its members are walked in the text, because a payload is kept as it was
 * written. The walk may trust the text: the parser has accepted it.
 *
 * Lines are stored in groups: a transaction of ours, which semel_inbox_put joins and in which it takes back what it
 * could not do. It is committed before anything is waited for, and when it has GROUP lines. Where the store has no
 * such groups (PostgreSQL) a group is one line, and its transaction is semel_inbox_put's own.
 *
 * Invariants: what is counted is committed. A bad line is named by its number and charged to nobody else. While the
 * input is waited for no lock is held, and between two groups there is a moment for others, who look for the lock now
 * and then and are not told. When the store fails reading stops, and what was not stored is said.
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "cli/send.h"
#include "core/row.h"
#include "store/sqlite_store.h"

#define LINE_MAX_BYTES ((size_t)SEMEL_PAYLOAD_HARD_MAX + SEMEL_HEADERS_MAX + 65536)
#define CHUNK 65536
#define GROUP 100
#define PAUSE_MS 2

/* ---- the members of a line ----------------------------------------------------------------------- */

enum member { M_ID, M_SOURCE, M_TYPE, M_ORDER_KEY, M_BUSINESS_KEY, M_TIME, M_VERSION, M_PAYLOAD, M_HEADERS, M_COUNT };

static const char *const member_names[M_COUNT] = {
    [M_ID] = "id",
    [M_SOURCE] = "source",
    [M_TYPE] = "type",
    [M_ORDER_KEY] = "order_key",
    [M_BUSINESS_KEY] = "business_key",
    [M_TIME] = "time",
    [M_VERSION] = "version",
    [M_PAYLOAD] = "payload",
    [M_HEADERS] = "headers",
};

static bool is_blank(struct semel_str line)
{
    size_t n = 0;
    while (n < line.n && strchr(" \t\r\n", line.p[n]) != NULL && line.p[n] != '\0')
        n++;
    return n == line.n;
}

/* The text of each member's value; not given: it is not there. false: `line`, which is JSON, is no object, or has a
 * member that nobody asked for. */
static bool walk(const struct semel_json *json, struct semel_str line, struct semel_str values[M_COUNT],
                 struct semel_error *err)
{
    struct semel_str name, value;
    if (json->root->tag != SEMEL_JSON_TAG_OBJECT)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "it is not a JSON object") == SEMEL_OK;
    for (size_t from = 0; semel__json_next(line, &from, &name, &value);) {
        size_t at = 0;
        while (at < M_COUNT && !semel__str_eqz(name, member_names[at]))
            at++;
        if (at == M_COUNT)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                               "there is no member \"%.*s\"; there are id, payload, source, type, order_key, version, "
                               "business_key, headers and time",
                               name.n < 40 ? (int)name.n : 40, name.p) == SEMEL_OK;
        values[at] = value;
    }
    return true;
}

/* ---- from a line to a message -------------------------------------------------------------------- */

struct reader {
    const struct semel_json *json;
    struct semel_arena *arena;
    struct semel_str values[M_COUNT];
    struct semel_error *err;
};

/* The text of a member; it stays as it was where the line does not have it, or says null. */
static bool take_text(const struct reader *r, enum member member, struct semel_str *value)
{
    char pointer[32];
    enum semel_json_kind kind = SEMEL_JSON_MISSING;
    struct semel_str text = {0};
    snprintf(pointer, sizeof(pointer), "/%s", member_names[member]);
    if (semel__json_get(r->json, semel__str(pointer), r->arena, &kind, &text, r->err) != SEMEL_OK)
        return false;
    if (kind == SEMEL_JSON_MISSING || kind == SEMEL_JSON_NULL)
        return true;
    if (kind != SEMEL_JSON_STRING)
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s must be a string", member_names[member]) ==
               SEMEL_OK;
    *value = text;
    return true;
}

static bool take_version(const struct reader *r, int64_t *ret)
{
    struct semel_str text = r->values[M_VERSION];
    if (!semel__str_given(text) || semel__str_eqz(text, "null"))
        return true;
    if (semel__str_int64(text, ret) && *ret >= 0 && *ret <= SEND_VERSION_MAX)
        return true;
    return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "version must be a whole number from 0 to %lld",
                       (long long)SEND_VERSION_MAX) == SEMEL_OK;
}

static bool take_time(const struct reader *r, int64_t *ret_us)
{
    struct semel_str text = {0};
    if (!take_text(r, M_TIME, &text))
        return false;
    if (!semel__str_given(text) || semel__time_parse(text, ret_us))
        return true;
    return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "time must be a time with its zone, such as 2026-11-15T22:48:07Z") == SEMEL_OK;
}

/* A string is the payload itself; anything else is kept as the JSON that it is. */
static bool take_payload(const struct reader *r, struct semel_str *ret)
{
    struct semel_str text = r->values[M_PAYLOAD];
    if (!semel__str_given(text))
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "payload is missing") == SEMEL_OK;
    if (text.p[0] == '"')
        return take_text(r, M_PAYLOAD, ret);
    *ret = text;
    return true;
}

static bool take_headers(const struct reader *r, struct semel_str *ret)
{
    struct semel_str text = r->values[M_HEADERS];
    if (!semel__str_given(text) || semel__str_eqz(text, "null"))
        return true;
    if (text.p[0] != '{')
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "headers must be an object") == SEMEL_OK;
    *ret = text;
    return true;
}

static bool take_msg(struct reader *r, struct semel_msg *msg)
{
    if (!take_text(r, M_ID, &msg->id))
        return false;
    if (!semel__str_given(msg->id))
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "id is missing") == SEMEL_OK;
    return take_text(r, M_SOURCE, &msg->source) && take_text(r, M_TYPE, &msg->type) &&
           take_text(r, M_ORDER_KEY, &msg->order_key) && take_text(r, M_BUSINESS_KEY, &msg->business_key) &&
           take_time(r, &msg->message_time_us) && take_version(r, &msg->version) && take_payload(r, &msg->payload) &&
           take_headers(r, &msg->headers);
}

/* ---- all lines ----------------------------------------------------------------------------------- */

struct run {
    struct semel *s;
    const struct semel_msg *common;
    bool grouped;
    struct semel_arena arena; /* lives as long as one line */
    int64_t lines, accepted, duplicates, refused, bad;
    struct {
        bool open;
        int64_t first, accepted, duplicates; /* its first line; what is in it */
    } group;
    int code;        /* not 0: the store failed, and reading stops */
    int64_t stopped; /* then: the first line that is not stored */
};

/* ---- groups -------------------------------------------------------------------------------------- */

static void stop(struct run *run, semel_status status, const struct semel_error *err, int64_t line)
{
    run->code = cli_fail_error(status, err, "storing the messages");
    run->stopped = line;
}

static bool begin_group(struct run *run)
{
    struct semel_error err = {0};
    if (run->group.open)
        return true;
    semel_status status = run->grouped ? semel__sqlite_group_begin(semel_native(run->s), &err) : SEMEL_OK;
    if (status != SEMEL_OK)
        stop(run, status, &err, run->lines);
    run->group.open = status == SEMEL_OK;
    run->group.first = run->lines;
    return run->group.open;
}

/* Commits what is open. A failure of the store may have ended it already, with all that was in it. */
static bool end_group(struct run *run)
{
    struct semel_error err = {0};
    if (!run->group.open)
        return true;
    semel_status status = run->grouped ? semel__sqlite_group_commit(semel_native(run->s), &err) : SEMEL_OK;
    if (status == SEMEL_OK) {
        run->accepted += run->group.accepted;
        run->duplicates += run->group.duplicates;
    } else if (run->code == CLI_OK) {
        stop(run, status, &err, run->group.first);
    } else {
        run->stopped = run->group.first;
    }
    run->group.open = false;
    run->group.accepted = run->group.duplicates = 0;
    if (run->grouped)
        poll(NULL, 0, PAUSE_MS);
    return status == SEMEL_OK;
}

/* ---- one line after the other -------------------------------------------------------------------- */

static void bad(struct run *run, const char *text)
{
    run->bad++;
    cli_fail(CLI_FAILED, "line %lld: %s", (long long)run->lines, text);
}

/* What is told is committed first: it says what was kept. */
static void count(struct run *run, const struct semel_verdict *verdict)
{
    struct send_answer answer = send_answer(verdict);
    if (answer.code != CLI_OK) {
        if (!end_group(run))
            return;
        run->refused++;
        cli_fail(answer.code, "line %lld: %s: %s", (long long)run->lines, answer.word, answer.text);
    } else if (strcmp(answer.word, "accepted") == 0) {
        run->group.accepted++;
    } else {
        run->group.duplicates++;
    }
}

static void store_line(struct run *run, const struct semel_msg *msg)
{
    struct semel_verdict verdict;
    struct semel_error err = {0};
    if (!begin_group(run))
        return;
    semel_verdict_init(&verdict);
    semel_status status = semel_inbox_put(run->s, msg, &verdict, &err);
    if (status == SEMEL_OK) {
        count(run, &verdict);
    } else if (send_is_input(status, &err)) {
        bad(run, err.text);
    } else {
        run->code = cli_fail_error(status, &err, "storing the message");
        run->stopped = run->lines;
    }
    if (run->code != CLI_OK || run->lines - run->group.first >= (run->grouped ? GROUP : 1) - 1)
        end_group(run);
}

static void take_line(struct run *run, struct semel_str line)
{
    struct semel_msg msg = *run->common;
    struct semel_error err = {0};
    struct semel_json *json = NULL;
    struct reader r = {.arena = &run->arena, .err = &err};
    run->lines++;
    if (is_blank(line))
        return;
    semel__arena_reset(&run->arena);
    if (semel__json_parse(&json, line, LINE_MAX_BYTES, &err) != SEMEL_OK) {
        bad(run, err.text);
        return;
    }
    r.json = json;
    if (walk(json, line, r.values, &err) && take_msg(&r, &msg))
        store_line(run, &msg);
    else
        bad(run, err.text);
    semel__json_free(json);
}

/* Takes what is complete out of the buffer. A line that is too long is given up where it is; `skipping` says that its
 * end is still to come. */
static void take_lines(struct run *run, struct semel_buf *buf, bool ended, bool *skipping)
{
    size_t at = 0;
    while (run->code == CLI_OK && at < buf->n) {
        const char *newline = memchr(buf->p + at, '\n', buf->n - at);
        size_t n = newline != NULL ? (size_t)(newline - buf->p) - at : buf->n - at;
        if (newline == NULL && !ended)
            break;
        if (!*skipping)
            take_line(run, (struct semel_str){buf->p + at, n});
        *skipping = false;
        at += n + (newline != NULL ? 1 : 0);
    }
    end_group(run);
    if (at > 0)
        memmove(buf->p, buf->p + at, buf->n - at);
    buf->n -= at;
}

static void too_long(struct run *run)
{
    char text[64];
    snprintf(text, sizeof(text), "it is longer than %zu bytes", LINE_MAX_BYTES);
    run->lines++;
    bad(run, text);
}

static void read_all(struct run *run)
{
    struct semel_buf buf;
    char chunk[CHUNK];
    bool skipping = false, ended = false;
    semel__buf_init(&buf, LINE_MAX_BYTES + CHUNK);
    while (run->code == CLI_OK && !ended) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            run->code = cli_fail(CLI_FAILED, "reading stdin: %s", cli_errno());
        else if (!semel__buf_add(&buf, chunk, (size_t)n))
            run->code = cli_fail(CLI_FAILED, "out of memory");
        ended = n == 0;
        if (ended || (n > 0 && memchr(chunk, '\n', (size_t)n) != NULL))
            take_lines(run, &buf, ended, &skipping);
        if (buf.n > LINE_MAX_BYTES) {
            if (!skipping)
                too_long(run);
            skipping = true;
            buf.n = 0;
        }
    }
    semel__buf_done(&buf);
}

static int print_sum(const struct cli *cli, const struct run *run)
{
    if (cli->json) {
        struct semel_object object;
        semel__object_init(&object);
        semel__object_number(&object, "lines", run->lines);
        semel__object_number(&object, "accepted", run->accepted);
        semel__object_number(&object, "duplicates", run->duplicates);
        semel__object_number(&object, "refused", run->refused);
        semel__object_number(&object, "bad", run->bad);
        return cli_object_print(&object);
    }
    cli_say(cli, "%lld lines: %lld accepted, %lld duplicates, %lld refused, %lld bad", (long long)run->lines,
            (long long)run->accepted, (long long)run->duplicates, (long long)run->refused, (long long)run->bad);
    return CLI_OK;
}

int send_lines(const struct cli *cli, struct semel *s, const struct semel_msg *common, bool grouped)
{
    struct run run = {.s = s, .common = common, .grouped = grouped};
    semel__arena_init(&run.arena, 2 * LINE_MAX_BYTES);
    read_all(&run);
    semel__arena_done(&run.arena);
    if (run.stopped == 0) /* nothing but the reading failed */
        run.stopped = run.lines + 1;
    int code = print_sum(cli, &run);
    if (run.code != CLI_OK)
        return cli_fail(run.code, "stopped at line %lld; send the same again: what is stored is then a duplicate",
                        (long long)run.stopped);
    if (code != CLI_OK)
        return code;
    return run.bad > 0 ? CLI_FAILED : run.refused > 0 ? CLI_REFUSED : CLI_OK;
}
