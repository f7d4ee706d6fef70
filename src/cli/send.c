/* SPDX-License-Identifier: MIT
 *
 * send.c: `semel send`: stores a message in a consumer's inbox as if its broker had delivered it.
 *
 * It goes through the door that every program has, semel_inbox_put: a repeat is told to be one, and the rules are the
 * consumer's. Nothing runs here; who works for the consumer takes it.
 */
#include "cli/send.h"

#include "base/error.h"
#include "core/broker.h"
#include "core/consumer.h"
#include "core/headers.h"
#include "core/row.h"

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

struct send_answer send_answer(const struct semel_verdict *verdict)
{
    struct send_answer refused = {"refused", "there is no room for it now; send it again later", CLI_REFUSED};
    size_t why = (size_t)verdict->why;
    if (why >= sizeof(answers) / sizeof(answers[0]))
        why = SEMEL_WHY_UNSET;
    /* What waits in vain for a place is not stored: too many messages are parked. */
    if (verdict->act == SEMEL_LATER && verdict->state == SEMEL_STATE_ABSENT && why != SEMEL_WHY_DAMAGED)
        return refused;
    return answers[why];
}

bool send_is_input(semel_status status, const struct semel_error *err)
{
    return status == SEMEL_INVALID && err->code == 0; /* the store's own failures have a number */
}

static int print_answer(const struct cli *cli, const struct semel_msg *msg, const struct semel_verdict *verdict)
{
    struct send_answer answer = send_answer(verdict);
    int code = CLI_OK;
    if (cli->json) {
        struct semel_object object;
        semel__object_init(&object);
        semel__object_text(&object, "result", semel__str(answer.word));
        semel__object_text(&object, "id", msg->id);
        semel__object_text(&object, "why", semel__str(semel_why_name(verdict->why)));
        semel__object_text(&object, "status", semel__str(semel_state_name(verdict->state)));
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
    const char *time = cli_value(args, "time");
    semel_msg_init(msg);
    msg->consumer = semel__str(cli_value(args, "consumer"));
    msg->id = semel__str(cli_value(args, "id"));
    msg->source = semel__str(cli_value(args, "source"));
    msg->type = semel__str(cli_value(args, "type"));
    msg->order_key = semel__str(cli_value(args, "order-key"));
    msg->business_key = semel__str(cli_value(args, "business-key"));
    if (msg->consumer.n == 0)
        return cli_fail(CLI_USAGE, "--consumer is needed: whose inbox is it for?");
    if (!cli_int(args, "version", 0, SEND_VERSION_MAX, SEMEL_NONE, &msg->version))
        return CLI_USAGE;
    if (time != NULL && !semel__time_parse(semel__str(time), &msg->message_time_us))
        return cli_fail(CLI_USAGE, "--time is '%s'; it must be a time with its zone, such as 2026-11-15T22:48:07Z",
                        time);
    return read_headers(cli, args, &msg->headers);
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
    if (send_is_input(status, &err))
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
    semel_status status = semel_open(&s, url, 0, &err);
    if (status != SEMEL_OK)
        return cli_store_refused(args, url, status, &err);
    code = check_consumer(s, msg.consumer);
    if (code == CLI_OK)
        code = lines ? send_lines(cli, s, &msg, cli_store_is_sqlite(url)) : send_one(cli, s, &msg);
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
    {"lines", 0, NULL, "read messages from stdin, one JSON object a line"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_send = {
    .name = "send",
    .summary = "store a message in a consumer's inbox, as if its broker had delivered it",
    .operands = "PAYLOAD|@FILE|-",
    .operands_max = 1,
    .options = options,
    .help =
        "Prints what came of it. A duplicate is an answer, not a failure. The message is handled when somebody\n"
        "works for the consumer: semel_inbox_work, semel_inbox_take, or the SQL function semel_inbox_take.\n"
        "\n"
        "With --lines each line of stdin is an object with the member id, and where wanted payload (text, or any\n"
        "JSON), source, type, order_key, version, business_key, headers (an object) and time; what a line does\n"
        "not say is taken from the options. A line that is bad is named on stderr and the others go on. Lines\n"
        "are committed some at a time and counted when they are; what was interrupted can be sent again, because\n"
        "repeats are duplicates.\n"
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
