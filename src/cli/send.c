/* SPDX-License-Identifier: MIT
 *
 * send.c: `semel send`: stores a message in a consumer's inbox as if its broker had delivered it.
 *
 * It calls semel_inbox_put, as every program can: a repeat is reported as one, and the consumer's rules hold. No
 * handler runs here; a worker of the consumer takes the message.
 *
 * With --lines each line of stdin is one JSON object and one message. A line is parsed strictly (base/json.h); then its
 * members are walked in the text, because a payload is kept as it was written. The walk may trust the text: the parser
 * has accepted it. Lines are stored in batches, one transaction each: of BATCH lines, or as many as there are when no
 * more input waits. Two lines with one id are in two batches, so that the second is reported as what it is.
 *
 * Invariants: what is counted is committed. A bad line is named by its number and does not affect other lines. While
 * the command waits for input nothing waits to be stored and no lock is held; on SQLite it pauses between two batches,
 * so that others who poll for the lock get it. When the store fails the command stops reading and reports the first
 * line that is not stored. SIGINT and SIGTERM end it between two batches.
 */
#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "cli/cli.h"
#include "core/broker.h"
#include "core/consumer.h"
#include "core/headers.h"
#include "core/row.h"
#include "lib/handle.h"
#include "semel/semel.h"

#define VERSION_MAX (INT64_MAX - 1) /* the one behind it must be a number, too */
#define LINE_MAX_BYTES (CLI_PAYLOAD_TEXT_MAX + (size_t)3 * SEMEL_HEADERS_MAX + 65536) /* an escape: 6 bytes of 2 */
#define CHUNK 65536
#define BATCH 1000
#define BATCH_BYTES ((size_t)4 << 20) /* of lines; a longer one is a batch of its own */
#define TABLE 4096                    /* of a batch's ids; a power of two, and more than BATCH */
#define PAUSE_MS 2
#define LINGER_US 5000 /* more input may come so soon that it should be in the same batch */
#define FOREVER_US (INT64_C(3600) * 1000000)

/* What came of one message, in a word and in a sentence. */
struct send_answer {
    const char *word, *text;
    int code;
};

static bool is_sqlite(const char *url)
{
    const struct cli_store_kind *kind = cli_store_kind_of(url);
    return kind != NULL && strcmp(kind->name, "sqlite") == 0;
}

/* ---- what came of it ----------------------------------------------------------------------------- */

static const struct send_answer answers[] = {
    [SEMEL_WHY_UNSET] = {"failed", "no verdict", CLI_FAILED},
    [SEMEL_WHY_NEW] = {"accepted", "it is stored and will be handled once", CLI_OK},
    [SEMEL_WHY_RETRIED] = {"duplicate", "it is stored already and is due", CLI_OK},
    [SEMEL_WHY_DUPLICATE] = {"duplicate", "a message with this id is here already; nothing was changed", CLI_OK},
    [SEMEL_WHY_BUSY] = {"duplicate", "it is being handled now; nothing was changed", CLI_OK},
    [SEMEL_WHY_BACKOFF] = {"duplicate", "it is here, has failed before, and waits for its next attempt", CLI_OK},
    [SEMEL_WHY_DEAD] = {"dead", "it is kept as a dead letter and will not run; semel inbox show says why", CLI_REFUSED},
    [SEMEL_WHY_CONFLICT] = {"conflict", "this id is here with another payload; the new one is kept as a conflict",
                            CLI_REFUSED},
    [SEMEL_WHY_STALE] = {"stale", "a later version of its key was applied; it is recorded and will not run", CLI_OK},
    [SEMEL_WHY_GAP] = {"accepted", "it is stored and waits for the versions before it", CLI_OK},
    [SEMEL_WHY_BLOCKED] = {"accepted", "it is stored and waits for the messages of its key before it", CLI_OK},
    [SEMEL_WHY_TOO_OLD] = {"quarantined", "it is older than what this consumer remembers; it is kept and will not run",
                           CLI_REFUSED},
    [SEMEL_WHY_BUSINESS] = {"business_duplicate", "its business key is taken by another message; it will not run",
                            CLI_OK},
    [SEMEL_WHY_NO_ID] = {"quarantined", "it has no usable id; it is kept and will not run", CLI_REFUSED},
    [SEMEL_WHY_UNKNOWN] = {"duplicate", "it is here, and an earlier attempt may have had its effect", CLI_OK},
    [SEMEL_WHY_DAMAGED] = {"damaged", "a row with this id is here but cannot be read; nothing was changed", CLI_STORE},
};

static struct send_answer answer_of(const struct semel_verdict *verdict)
{
    struct send_answer refused = {"refused", "there is no room for it now; send it again later", CLI_REFUSED};
    size_t why = (size_t)verdict->why;
    if (why >= sizeof(answers) / sizeof(answers[0]))
        why = SEMEL_WHY_UNSET;
    /* Too many messages are parked: this one was not stored. */
    if (verdict->act == SEMEL_LATER && verdict->status == SEMEL_ROW_ABSENT && why != SEMEL_WHY_DAMAGED)
        return refused;
    return answers[why];
}

/* Is it the input that is wrong, and not the store? */
static bool is_input(semel_status status, const struct semel_error *err)
{
    return status == SEMEL_INVALID && err->code == 0; /* the store's own failures have a number */
}

static int print_answer(const struct cli *cli, const struct semel_msg *msg, const struct semel_verdict *verdict)
{
    struct send_answer answer = answer_of(verdict);
    int code = CLI_OK;
    if (cli->json) {
        struct semel_object object;
        semel__object_init(&object);
        semel__object_text(&object, "result", semel__str(answer.word));
        semel__object_text(&object, "id", msg->id);
        semel__object_text(&object, "why", semel__str(semel_why_name(verdict->why)));
        semel__object_text(&object, "status", semel__str(semel_row_status_name(verdict->status)));
        semel__object_text(&object, "text", semel__str(answer.text));
        code = cli_object_print(&object);
    }
    cli_say(cli, "%s: %s", answer.word, answer.text);
    return code != CLI_OK ? code : answer.code;
}

/* ---- the message --------------------------------------------------------------------------------- */

/* --header NAME=VALUE, as often as there are. */
static int read_headers(struct cli *cli, const struct cli_args *args, struct semel_str *ret)
{
    struct semel_error err = {0};
    size_t n = 0;
    while (cli_values(args, "header", n) != NULL)
        n++;
    struct semel_pair *pairs = semel__arena_alloc(&cli->arena, n + 1, sizeof(*pairs));
    if (pairs == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const char *text = cli_values(args, "header", i);
        const char *equals = strchr(text, '=');
        if (equals == NULL || equals == text)
            return cli_fail(CLI_USAGE, "--header is '%s'; it must be NAME=VALUE", text);
        pairs[i].name = (struct semel_str){text, (size_t)(equals - text)};
        pairs[i].value = semel__str(equals + 1);
    }
    semel_status status = semel__headers_json(pairs, n, &cli->arena, ret, &err);
    return status == SEMEL_OK ? CLI_OK : cli_fail(CLI_USAGE, "--header: %s", err.text);
}

static int read_msg(struct cli *cli, const struct cli_args *args, struct semel_msg *msg)
{
    const char *time = cli_value(args, "time"), *later = cli_value(args, "not-before");
    semel_msg_init(msg);
    msg->consumer = semel__str(cli_value(args, "consumer"));
    msg->id = semel__str(cli_value(args, "id"));
    msg->source = semel__str(cli_value(args, "source"));
    msg->type = semel__str(cli_value(args, "type"));
    msg->order_key = semel__str(cli_value(args, "order-key"));
    msg->business_key = semel__str(cli_value(args, "business-key"));
    if (msg->consumer.n == 0)
        return cli_fail(CLI_USAGE, "--consumer is needed: whose inbox is it for?");
    if (!cli_int(args, "version", 0, VERSION_MAX, SEMEL_NONE, &msg->version))
        return CLI_USAGE;
    if (time != NULL && !semel__time_parse(semel__str(time), &msg->message_time_us))
        return cli_fail(CLI_USAGE, "--time is '%s'; it must be a time with its zone, such as 2026-11-15T22:48:07Z",
                        time);
    if (later != NULL && !semel__time_parse(semel__str(later), &msg->not_before_us))
        return cli_fail(CLI_USAGE,
                        "--not-before is '%s'; it must be a time with its zone, such as 2026-11-15T22:48:07Z", later);
    return read_headers(cli, args, &msg->headers);
}

/* ---- the members of a line ----------------------------------------------------------------------- */

enum member {
    M_ID,
    M_SOURCE,
    M_TYPE,
    M_ORDER_KEY,
    M_BUSINESS_KEY,
    M_TIME,
    M_NOT_BEFORE,
    M_VERSION,
    M_PAYLOAD,
    M_PAYLOAD_BASE64,
    M_HEADERS,
    M_COUNT
};

static const char *const member_names[M_COUNT] = {
    [M_ID] = "id",
    [M_SOURCE] = "source",
    [M_TYPE] = "type",
    [M_ORDER_KEY] = "order_key",
    [M_BUSINESS_KEY] = "business_key",
    [M_TIME] = "time",
    [M_NOT_BEFORE] = "not_before",
    [M_VERSION] = "version",
    [M_PAYLOAD] = "payload",
    [M_PAYLOAD_BASE64] = "payload_base64",
    [M_HEADERS] = "headers",
};

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
                               "there is no member \"%.*s\"; there are id, payload, payload_base64, source, type, "
                               "order_key, version, business_key, headers, time and not_before",
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
static bool parse_text(const struct reader *r, enum member member, struct semel_str *value)
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

static bool parse_version(const struct reader *r, int64_t *ret)
{
    struct semel_str text = r->values[M_VERSION];
    if (!semel__str_given(text) || semel__str_eqz(text, "null"))
        return true;
    if (semel__str_int64(text, ret) && *ret >= 0 && *ret <= VERSION_MAX)
        return true;
    return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "version must be a whole number from 0 to %lld",
                       (long long)VERSION_MAX) == SEMEL_OK;
}

static bool parse_time(const struct reader *r, enum member member, int64_t *ret_us)
{
    struct semel_str text = {0};
    if (!parse_text(r, member, &text))
        return false;
    if (!semel__str_given(text) || semel__time_parse(text, ret_us))
        return true;
    return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                       "%s must be a time with its zone, such as 2026-11-15T22:48:07Z",
                       member_names[member]) == SEMEL_OK;
}

/* A string is the payload itself; anything else is kept as the JSON that it is. */
static bool parse_payload(const struct reader *r, struct semel_str *ret)
{
    struct semel_str text = r->values[M_PAYLOAD];
    if (semel__str_given(r->values[M_PAYLOAD_BASE64]) && semel__str_given(text))
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                           "payload and payload_base64 are both there; give one of them") == SEMEL_OK;
    if (semel__str_given(r->values[M_PAYLOAD_BASE64]))
        return cli_payload_decode(r->json, r->arena, ret, r->err) == SEMEL_OK;
    if (!semel__str_given(text))
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "payload is missing") == SEMEL_OK;
    if (text.p[0] == '"')
        return parse_text(r, M_PAYLOAD, ret);
    *ret = text;
    return true;
}

static bool parse_headers(const struct reader *r, struct semel_str *ret)
{
    struct semel_str text = r->values[M_HEADERS];
    if (!semel__str_given(text) || semel__str_eqz(text, "null"))
        return true;
    if (text.p[0] != '{')
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "headers must be an object") == SEMEL_OK;
    *ret = text;
    return true;
}

static bool parse_msg(struct reader *r, struct semel_msg *msg)
{
    if (!parse_text(r, M_ID, &msg->id))
        return false;
    if (!semel__str_given(msg->id))
        return semel__fail(r->err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "id is missing") == SEMEL_OK;
    return parse_text(r, M_SOURCE, &msg->source) && parse_text(r, M_TYPE, &msg->type) &&
           parse_text(r, M_ORDER_KEY, &msg->order_key) && parse_text(r, M_BUSINESS_KEY, &msg->business_key) &&
           parse_time(r, M_TIME, &msg->message_time_us) && parse_time(r, M_NOT_BEFORE, &msg->not_before_us) &&
           parse_version(r, &msg->version) && parse_payload(r, &msg->payload) && parse_headers(r, &msg->headers);
}

/* ---- a batch ------------------------------------------------------------------------------------- */

struct line {
    int64_t number;
    const char *bad; /* why it is no message; NULL: it is one */
};

struct lines {
    struct semel *s;
    const struct semel_msg *common;
    bool pauses;
    int64_t lines, accepted, duplicates, refused, bad;
    struct cli_progress progress;
    int64_t size, taken; /* of stdin: its bytes, if it is a file, and how many were taken */
    int code;            /* not 0: the store failed or somebody interrupted it, and reading stops */
    int64_t stopped;     /* then: the first line that is not stored */
    /* The batch. */
    struct semel_arena arena; /* its lines */
    struct line all[BATCH];   /* in their order */
    struct semel_msg msgs[BATCH];
    struct semel_put puts[BATCH];
    size_t n, n_msgs, bytes;
    uint16_t table[TABLE]; /* ids to msgs, from 1; 0: a free place */
};

/* The place of this id in the table: its own, or a free one. */
static size_t place_of(const struct lines *run, const struct semel_msg *msg)
{
    size_t at = (size_t)semel__str_hash(0, msg->id) % TABLE;
    while (run->table[at] != 0 && (!semel__str_eq(run->msgs[run->table[at] - 1].id, msg->id) ||
                                   !semel__str_eq(run->msgs[run->table[at] - 1].source, msg->source)))
        at = (at + 1) % TABLE;
    return at;
}

static void begin_batch(struct lines *run)
{
    run->n = run->n_msgs = run->bytes = 0;
    memset(run->table, 0, sizeof(run->table));
    semel__arena_reset(&run->arena);
}

static void report_bad(struct lines *run, const struct line *line, const char *text)
{
    run->bad++;
    cli_fail(CLI_FAILED, "line %lld: %s", (long long)line->number, text);
}

static void report_stored(struct lines *run, const struct line *line, const struct semel_verdict *verdict)
{
    struct send_answer answer = answer_of(verdict);
    if (answer.code != CLI_OK) {
        run->refused++;
        cli_fail(answer.code, "line %lld: %s: %s", (long long)line->number, answer.word, answer.text);
    } else if (strcmp(answer.word, "accepted") == 0) {
        run->accepted++;
    } else {
        run->duplicates++;
    }
}

/* Reports the lines that are committed, and each bad line. */
static void report(struct lines *run)
{
    int64_t last = 0, left = 0, left_before = 0; /* not stored: in all, and before the last that is reported */
    size_t at = 0;
    for (size_t i = 0; i < run->n; i++) {
        const struct line *line = &run->all[i];
        const struct semel_put *put = line->bad == NULL ? &run->puts[at++] : NULL;
        if (put != NULL && put->undecided) {
            run->stopped = run->stopped == 0 ? line->number : run->stopped;
            left++;
            continue;
        }
        if (put == NULL || put->wrong)
            report_bad(run, line, put == NULL ? line->bad : put->err.text);
        else
            report_stored(run, line, &put->verdict);
        last = line->number;
        left_before = left;
    }
    if (run->stopped != 0)
        run->lines = run->stopped > last ? run->stopped - 1 : last - left_before;
}

/* In one transaction. A store that answers, and refuses, is asked line by line, so that the report names the line that
 * it refuses, and those before it are stored. */
static semel_status store_batch(struct lines *run, struct semel_error *err)
{
    semel_status status = semel__put_many(run->s, run->msgs, run->n_msgs, run->puts, err);
    if (status != SEMEL_INVALID && status != SEMEL_RETRY)
        return status;
    status = SEMEL_OK;
    for (size_t i = 0; status == SEMEL_OK && i < run->n_msgs; i++)
        if (run->puts[i].undecided)
            status = semel__put_many(run->s, &run->msgs[i], 1, &run->puts[i], err);
    return status;
}

static void end_batch(struct lines *run)
{
    struct semel_error err = {0};
    if (run->n == 0)
        return;
    semel_status status = store_batch(run, &err);
    report(run);
    if (status != SEMEL_OK)
        run->code = cli_fail_error(status, &err, "storing the messages");
    double part = run->size > 0 ? (double)run->taken / (double)run->size : -1;
    cli_progress_show(&run->progress, run->lines, "lines", part < 1 ? part : 1);
    begin_batch(run);
    if (run->pauses)
        poll(NULL, 0, PAUSE_MS);
}

/* ---- one line after the other -------------------------------------------------------------------- */

static void add_bad(struct lines *run, const char *text)
{
    struct semel_str copy = {NULL, 0};
    bool copied = semel__arena_copy(&run->arena, (struct semel_str){text, strlen(text) + 1}, &copy);
    run->all[run->n++] = (struct line){.number = run->lines, .bad = copied ? copy.p : "it is bad"};
}

/* The message is in the arena, or lives longer. */
static void add_msg(struct lines *run, const struct semel_msg *msg)
{
    run->msgs[run->n_msgs++] = *msg;
    run->table[place_of(run, msg)] = (uint16_t)run->n_msgs;
    run->all[run->n++] = (struct line){.number = run->lines};
}

static bool read_line(struct lines *run, struct semel_str line, struct semel_msg *msg, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_str kept;
    *msg = *run->common;
    if (!semel__arena_copy(&run->arena, line, &kept))
        return semel__fail_memory(err) == SEMEL_OK;
    if (semel__json_parse(&json, kept, LINE_MAX_BYTES, err) != SEMEL_OK)
        return false;
    struct reader r = {.json = json, .arena = &run->arena, .err = err};
    bool ok = walk(json, kept, r.values, err) && parse_msg(&r, msg);
    semel__json_free(json);
    return ok;
}

static void parse_line(struct lines *run, struct semel_str line)
{
    struct semel_msg msg;
    struct semel_error err = {0};
    if (run->n == BATCH || (run->n > 0 && run->bytes + line.n > BATCH_BYTES))
        end_batch(run);
    if (run->code != CLI_OK)
        return;
    run->lines++;
    if (cli_is_blank(line))
        return;
    if (!read_line(run, line, &msg, &err)) {
        add_bad(run, err.text);
    } else if (run->table[place_of(run, &msg)] == 0) {
        add_msg(run, &msg);
    } else { /* its id is in this batch already */
        run->lines--;
        end_batch(run);
        run->lines += run->code == CLI_OK;
        if (run->code == CLI_OK && read_line(run, line, &msg, &err))
            add_msg(run, &msg);
    }
    run->bytes += line.n;
}

/* Takes what is complete out of the buffer. A line that is too long is given up where it is; `skipping` says that its
 * end is still to come. */
static void parse_lines(struct lines *run, struct semel_buf *buf, bool ended, bool *skipping)
{
    size_t at = 0;
    while (run->code == CLI_OK && at < buf->n) {
        const char *newline = memchr(buf->p + at, '\n', buf->n - at);
        size_t n = newline != NULL ? (size_t)(newline - buf->p) - at : buf->n - at;
        if (newline == NULL && !ended)
            break;
        run->taken += (int64_t)n + 1;
        if (!*skipping)
            parse_line(run, (struct semel_str){buf->p + at, n});
        *skipping = false;
        at += n + (newline != NULL ? 1 : 0);
    }
    if (at > 0)
        memmove(buf->p, buf->p + at, buf->n - at);
    buf->n -= at;
}

static void too_long(struct lines *run)
{
    char text[64];
    snprintf(text, sizeof(text), "it is longer than %zu bytes", LINE_MAX_BYTES);
    end_batch(run);
    run->lines++;
    add_bad(run, text);
}

/* Before it waits, it stores what was read. false: it is interrupted. */
static bool wait_for_input(struct lines *run)
{
    if (cli_stdin_ready(run->n > 0 ? LINGER_US : 0))
        return true;
    end_batch(run);
    while (run->code == CLI_OK && !cli_stdin_ready(FOREVER_US))
        if (cli_interrupted(0))
            run->code = CLI_INTERRUPTED;
    return run->code == CLI_OK;
}

static void read_all(struct lines *run)
{
    struct semel_buf buf;
    char chunk[CHUNK];
    bool skipping = false, ended = false;
    semel__buf_init(&buf, LINE_MAX_BYTES + CHUNK);
    while (run->code == CLI_OK && !ended && wait_for_input(run)) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof(chunk));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            run->code = cli_fail(CLI_FAILED, "reading stdin: %s", cli_errno());
        else if (!semel__buf_add(&buf, chunk, (size_t)n))
            run->code = cli_fail(CLI_FAILED, "out of memory");
        ended = n == 0;
        if (ended || (n > 0 && memchr(chunk, '\n', (size_t)n) != NULL))
            parse_lines(run, &buf, ended, &skipping);
        if (buf.n > LINE_MAX_BYTES) {
            if (!skipping)
                too_long(run);
            skipping = true;
            buf.n = 0;
        }
    }
    if (run->code == CLI_OK || run->stopped == 0)
        end_batch(run);
    semel__buf_done(&buf);
}

static int print_sum(const struct cli *cli, const struct lines *run)
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
    cli_say(cli, "%lld line%s: %lld accepted, %lld duplicate%s, %lld refused, %lld bad", (long long)run->lines,
            CLI_S(run->lines), (long long)run->accepted, (long long)run->duplicates, CLI_S(run->duplicates),
            (long long)run->refused, (long long)run->bad);
    return CLI_OK;
}

/* Members that a line does not have are those of `common`. */
static int send_lines(const struct cli *cli, const struct cli_args *args, struct semel *s,
                      const struct semel_msg *common, bool sqlite)
{
    struct stat st;
    struct lines *run = semel__calloc(1, sizeof(*run)); /* too large for a stack */
    if (run == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    run->s = s;
    run->common = common;
    run->pauses = sqlite;
    run->size = fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0;
    semel__arena_init(&run->arena, 2 * (LINE_MAX_BYTES + BATCH_BYTES));
    begin_batch(run);
    cli_signals_catch();
    cli_progress_begin(&run->progress, args);
    read_all(run);
    cli_progress_end(&run->progress, run->lines, run->lines == 1 ? "line" : "lines");
    if (run->stopped == 0) /* nothing but the reading failed */
        run->stopped = run->lines + 1;
    int code = print_sum(cli, run);
    if (run->code != CLI_OK)
        code = cli_fail(run->code, "%s at line %lld; send the same again: what is stored is then a duplicate",
                        run->code == CLI_INTERRUPTED ? "interrupted" : "stopped", (long long)run->stopped);
    else if (code == CLI_OK)
        code = run->bad > 0 ? CLI_FAILED : run->refused > 0 ? CLI_REFUSED : CLI_OK;
    semel__arena_done(&run->arena);
    semel__free(run);
    return code;
}

/* ---- the command --------------------------------------------------------------------------------- */

static int send_one(struct cli *cli, struct semel *s, const struct semel_msg *msg)
{
    struct semel_verdict verdict;
    struct semel_error err = {0};
    semel_verdict_init(&verdict);
    semel_status status = semel_inbox_put(s, msg, &verdict, &err);
    if (status == SEMEL_OK)
        return print_answer(cli, msg, &verdict);
    if (is_input(status, &err))
        return cli_fail(CLI_USAGE, "%s", err.text);
    return cli_fail_error(status, &err, "storing the message");
}

/* What cannot be stored for its consumer, whatever the message is. */
static int check_consumer(struct semel *s, struct semel_str name)
{
    struct semel_policy policy;
    struct semel_str settings;
    struct semel_error err = {0};
    if (semel__id_check("consumer", name, 1, &err) != SEMEL_OK)
        return cli_fail(CLI_USAGE, "%s", err.text);
    semel_status status = semel_consumer_get(s, name.p, &settings, &err);
    if (status == SEMEL_OK)
        status = semel__policy_read(name, settings, &policy, NULL, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the consumer's settings");
    if (policy.keep == SEMEL_KEEP_NEVER)
        return cli_fail(CLI_REFUSED, "consumer '%s' keeps no payloads (keep_payload): what is stored could never run",
                        name.p);
    return CLI_OK;
}

static int check_form(const struct cli_args *args, bool lines)
{
    if (lines && (cli_n(args) > 0 || cli_value(args, "id") != NULL))
        return cli_fail(CLI_USAGE, "with --lines ids and payloads come from stdin; leave out '%s'",
                        cli_n(args) > 0 ? cli_operand(args, 0) : "--id");
    if (!lines && cli_value(args, "id") == NULL)
        return cli_fail(CLI_USAGE, "--id is needed: the id of the event, the same whenever it is sent again");
    if (!lines && cli_n(args) == 0)
        return cli_fail(CLI_USAGE, "a payload is needed: its text, @FILE, or - for stdin");
    return CLI_OK;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    struct semel *s = NULL;
    struct semel_msg msg;
    struct semel_error err = {0};
    bool lines = cli_flag(args, "lines");
    int code = check_form(args, lines);
    if (code == CLI_OK)
        code = read_msg(cli, args, &msg);
    const char *url = code == CLI_OK ? cli_store_url(args, &code) : NULL;
    if (code == CLI_OK && !lines)
        code = cli_input(cli, cli_operand(args, 0), "the payload", SEMEL_PAYLOAD_HARD_MAX, &msg.payload);
    if (code != CLI_OK)
        return code;
    semel_status status = cli_store_judge(url, &err);
    if (status == SEMEL_OK)
        status = semel_open(&s, url, 0, &err);
    if (status != SEMEL_OK)
        return cli_store_refused(args, url, status, &err);
    code = check_consumer(s, msg.consumer);
    if (code == CLI_OK)
        code = lines ? send_lines(cli, args, s, &msg, is_sqlite(url)) : send_one(cli, s, &msg);
    semel_close(s);
    return code;
}

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    {"consumer", 'c', "NAME", "whose inbox (needed)"},
    {"id", 0, "ID", "the id of the event (needed, but with --lines)"},
    {"source", 0, "NAME", "the stream that the id belongs to (default: none)"},
    {"type", 0, "TYPE", "the type of the event"},
    {"order-key", 'k', "KEY", "messages of one key are handled one at a time and in order"},
    {"version", 0, "N", "the version of the key's state that this message makes"},
    {"business-key", 0, "KEY", "the intent: another message with it is a business duplicate"},
    {"header", 0, "NAME=VALUE...", "a header; may be given several times"},
    {"time", 0, "TIME", "when the event was made, as 2026-11-15T22:48:07Z (default: from the id, if it holds one)"},
    {"not-before", 0, "TIME", "do not run it before this time, at most ten years ahead (default: at once)"},
    {"lines", 0, NULL, "read messages from stdin, one JSON object per line"},
    {"progress", 0, NULL, "with --lines: show the progress and the rate also where stderr is no terminal"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_send = {
    .name = "send",
    .summary = "store a message in a consumer's inbox, as if its broker had delivered it",
    .operands = "PAYLOAD|@FILE|-",
    .operands_max = 1,
    .options = options,
    .help =
        "Prints the verdict. A duplicate is an answer, not a failure. The message is handled when a worker of\n"
        "the consumer takes it: a route of `semel run` (with `from: inbox` it needs no broker), work() of the client\n"
        "for Python or Node, semel_inbox_work or semel_inbox_take in C, or inbox_take in SQL.\n"
        "\n"
        "With --lines each line of stdin is an object with the member id, and where wanted payload (text, or any\n"
        "JSON; payload_base64 for other bytes), source, type, order_key, version, business_key, headers (an object),\n"
        "time and not_before; what a line does not say is taken from the options. A line that is bad is named on\n"
        "stderr and the others go on. Lines are committed in batches of up to 1000 and counted when they are; what\n"
        "was interrupted can be sent again, because repeats are duplicates.\n"
        "\n"
        "Exit codes: 0 stored now or before; 1 a line was bad; 2 the message is not one; 4 a conflict, or refused;\n"
        "5 the store fails.\n"
        "\n"
        "Examples\n"
        "  semel send --store sqlite:shop.db --consumer billing --id pay-1 '{\"cents\": 4200}'\n"
        "  semel send --store sqlite:shop.db --consumer billing --id pay-2 --header trace=7 @payment.json\n"
        "  semel send --store sqlite:shop.db --consumer billing --lines < payments.jsonl",
    .run = run,
};
