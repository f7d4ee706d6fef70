/* SPDX-License-Identifier: MIT
 *
 * inbox.c: the command `semel inbox`: the table of its children, the filters that they share, and finding one message.
 *
 * Invariants: every query is bounded. A filter that matches nothing by mistake (a status or a class that is none) is
 * refused, and what would be right is said.
 */
#include "cli/inbox.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/consumer.h"
#include "core/verdict.h"

#define HOMONYMS_MAX 20 /* messages of one id that are told apart by name */
#define HISTORY_MAX 100
#define PLACES_MAX 100 /* consumers, and sources of each, whose watermark is asked for */

static const struct cli_command *const children[] = {
    &inbox_ls, &inbox_show, &inbox_retry, &inbox_discard, &inbox_resolve, NULL,
};

const struct cli_command cli_inbox = {
    .name = "inbox",
    .summary = "list, explain, retry, discard and resolve messages",
    .operands = "COMMAND",
    .help =
        "Dead letters are messages like all others: semel inbox ls --dead lists them, semel inbox ls --group-by error\n"
        "shows why there are so many, and semel inbox show ID says in words why one is not running.",
    .children = children,
};

/* ---- filters ------------------------------------------------------------------------------------- */

static struct semel_str value(const struct cli_args *args, const char *name)
{
    return semel__str(cli_value(args, name));
}

static bool add_state(struct semel_str name, unsigned *states)
{
    enum semel_state state;
    if (!semel__state_parse(name, &state) || state == SEMEL_STATE_ABSENT) {
        cli_fail(CLI_USAGE,
                 "--status is '%.*s'; it must be one of processing, completed, failed, waiting, rejected, unknown, "
                 "dead, stale, prevented, quarantined, or several with commas between",
                 (int)(name.n < 100 ? name.n : 100), name.p);
        return false;
    }
    *states |= 1u << (unsigned)state;
    return true;
}

static bool read_states(const struct cli_args *args, unsigned *states)
{
    const char *given;
    *states = cli_flag(args, "dead") ? 1u << (unsigned)SEMEL_STATE_DEAD : 0;
    for (size_t i = 0; (given = cli_values(args, "status", i)) != NULL; i++) {
        const char *comma;
        for (; (comma = strchr(given, ',')) != NULL; given = comma + 1)
            if (!add_state((struct semel_str){given, (size_t)(comma - given)}, states))
                return false;
        if (!add_state(semel__str(given), states))
            return false;
    }
    return true;
}

static bool read_class(const struct cli_args *args)
{
    enum semel_class cls;
    struct semel_buf names;
    const char *given = cli_value(args, "class");
    if (given == NULL || semel__class_parse(semel__str(given), &cls))
        return true;
    semel__buf_init(&names, 1000);
    for (cls = SEMEL_CLASS_TRANSIENT; cls <= SEMEL_CLASS_DISCARDED; cls++)
        semel__buf_addf(&names, "%s%s", names.n > 0 ? ", " : "", semel__class_name(cls));
    cli_fail(CLI_USAGE, "--class is '%s'; it must be one of %.*s", given, (int)names.n, names.p != NULL ? names.p : "");
    semel__buf_done(&names);
    return false;
}

bool inbox_filter(const struct cli_args *args, int64_t now_us, struct semel_filter *ret)
{
    int64_t older_us, newer_us;
    *ret = (struct semel_filter){
        .consumer = value(args, "consumer"),
        .source = value(args, "source"),
        .type = value(args, "type"),
        .order_key = value(args, "key"),
        .error_class = value(args, "class"),
        .error_text = value(args, "error"),
        .received_before_us = SEMEL_NONE,
        .received_after_us = SEMEL_NONE,
    };
    if (!read_states(args, &ret->states) || !read_class(args) || !cli_duration(args, "older", SEMEL_NONE, &older_us) ||
        !cli_duration(args, "newer", SEMEL_NONE, &newer_us))
        return false;
    if (older_us != SEMEL_NONE)
        ret->received_before_us = semel__time_add(now_us, -older_us);
    if (newer_us != SEMEL_NONE)
        ret->received_after_us = semel__time_add(now_us, -newer_us);
    return true;
}

static const char *const filter_names[] = {"status", "type", "key", "error", "class", "older", "newer"};

const char *inbox_filter_given(const struct cli_args *args)
{
    if (cli_flag(args, "dead"))
        return "dead";
    for (size_t i = 0; i < sizeof filter_names / sizeof filter_names[0]; i++)
        if (cli_value(args, filter_names[i]) != NULL)
            return filter_names[i];
    return NULL;
}

static void put_option(struct semel_buf *buf, const struct cli_args *args, const char *name)
{
    const char *given;
    for (size_t i = 0; (given = cli_values(args, name, i)) != NULL; i++) {
        semel__buf_addf(buf, " --%s=", name);
        cli_put_word(buf, semel__str(given));
    }
}

void inbox_put_filters(struct semel_buf *buf, const struct cli_args *args)
{
    put_option(buf, args, "consumer");
    put_option(buf, args, "source");
    if (cli_flag(args, "dead"))
        semel__buf_addz(buf, " --dead");
    for (size_t i = 0; i < sizeof filter_names / sizeof filter_names[0]; i++)
        put_option(buf, args, filter_names[i]);
    if (cli_value(args, "store") != NULL) {
        semel__buf_addz(buf, " --store=");
        cli_put_word(buf, semel__str(cli_store_shown(cli_value(args, "store"))));
    }
}

/* ---- one message --------------------------------------------------------------------------------- */

static int tell_homonyms(const char *id, const struct semel_row *rows, size_t n)
{
    struct semel_buf line;
    int code = cli_fail(CLI_USAGE, "'%s' is the id of %s%zu messages; say which one:", id,
                        n == HOMONYMS_MAX ? "at least " : "", n);
    for (size_t i = 0; i < n; i++) {
        semel__buf_init(&line, 4096);
        semel__buf_addz(&line, "--consumer ");
        cli_put_word(&line, rows[i].consumer);
        semel__buf_addz(&line, " --source ");
        cli_put_word(&line, rows[i].source);
        cli_fail(code, "    %.*s   (%s)", (int)line.n, line.p != NULL ? line.p : "",
                 semel__state_name(rows[i].live.state));
        semel__buf_done(&line);
    }
    return code;
}

/* Does the id carry a time before the watermark of this place? Then it may have been here, and was purged. */
static bool tell_purged(struct cli *cli, struct semel_store *store, const char *id, struct semel_str consumer,
                        struct semel_str source, int64_t made_us)
{
    struct semel_row row = {.consumer = consumer, .source = source, .id = semel__str(id), .version = SEMEL_NONE};
    struct semel_history history;
    char made[40], mark[40];
    if (semel_look_history(store, &row, 1, &cli->arena, &history, NULL) != SEMEL_OK ||
        history.watermark_us == SEMEL_NONE || made_us >= history.watermark_us)
        return false;
    cli_time(made_us, made, sizeof made);
    cli_time(history.watermark_us, mark, sizeof mark);
    cli_fail(
        CLI_NOTHING,
        "its id was made at %s; what consumer %.*s had finished of source '%.*s' from before %s has been purged, so "
        "it may have been there",
        made, (int)consumer.n, consumer.p, (int)source.n, source.p, mark);
    return true;
}

static bool purged_from(struct cli *cli, struct semel_store *store, const char *id, struct semel_str consumer,
                        struct semel_str only)
{
    struct semel__msg msg;
    struct semel_policy policy;
    struct semel_str *sources;
    size_t n;
    semel__msg_init(&msg);
    msg.id = semel__str(id);
    if (semel__consumer_load(store, consumer, &cli->arena, &policy, NULL, NULL) != SEMEL_OK)
        return false;
    const int64_t made_us = semel__msg_time(&policy, &msg, semel__now(&semel__clock_real));
    if (made_us == SEMEL_NONE)
        return false;
    if (semel_store_sources(store, consumer, &cli->arena, &sources, &n, NULL) != SEMEL_OK)
        return false;
    for (size_t i = 0; i < n && i < PLACES_MAX; i++)
        if ((!semel__str_given(only) || semel__str_eq(only, sources[i])) &&
            tell_purged(cli, store, id, consumer, sources[i], made_us))
            return true;
    return false;
}

static int tell_none(struct cli *cli, const struct cli_args *args, struct semel_store *store, const char *id)
{
    struct semel_str consumer = value(args, "consumer"), *consumers = &consumer;
    size_t n = 1;
    int code = cli_fail(CLI_NOTHING, "there is no message '%s'%s", id,
                        semel__str_given(consumer) || cli_value(args, "source") != NULL ? " of that consumer and source"
                                                                                        : "");
    if (!semel__str_given(consumer) &&
        semel_store_consumers(store, (struct semel_str){0}, PLACES_MAX, &cli->arena, &consumers, &n, NULL) != SEMEL_OK)
        return code;
    for (size_t i = 0; i < n; i++)
        if (purged_from(cli, store, id, consumers[i], value(args, "source")))
            break;
    return code;
}

int inbox_find(struct cli *cli, const struct cli_args *args, struct semel_store *store, const char *id,
               bool with_payload, struct semel_row **ret_row, bool *ret_damaged)
{
    struct semel_filter filter = {.consumer = value(args, "consumer"),
                                  .source = value(args, "source"),
                                  .id = semel__str(id),
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_error err = {0};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged = 0;
    *ret_damaged = false;
    if (semel__id_check("the message id", filter.id, 1, &err) != SEMEL_OK)
        return cli_fail(CLI_USAGE, "%s", err.text);
    semel_status status = semel_look_list(store, &filter, SEMEL_NONE, HOMONYMS_MAX, with_payload, &cli->arena, &rows,
                                          &n, &damaged, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "looking for the message");
    if (n == 0 && damaged == 0)
        return tell_none(cli, args, store, id);
    if (n > 1)
        return tell_homonyms(id, rows, n);
    *ret_damaged = n == 0;
    *ret_row = n == 1 ? &rows[0] : NULL;
    return CLI_OK;
}

int inbox_facts(struct cli *cli, const struct cli_args *args, struct semel_store *store, struct semel_row *row,
                struct cli_facts *ret)
{
    struct semel_history *history = semel__arena_alloc(&cli->arena, 1, sizeof *history);
    struct semel_policy *policy = semel__arena_alloc(&cli->arena, 1, sizeof *policy);
    struct semel_error err = {0};
    struct semel_row *rows = NULL;
    size_t n = 0, damaged;
    bool said;
    if (history == NULL || policy == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    semel_status status = semel__consumer_load(store, row->consumer, &cli->arena, policy, &said, &err);
    if (status == SEMEL_OK && !said && semel__str_given(row->order_key)) /* as the first message of a key settles it */
        policy->order = row->version != SEMEL_NONE ? SEMEL_ORDER_VERSION : SEMEL_ORDER_ARRIVAL;
    if (status == SEMEL_OK)
        status = semel_look_history(store, row, HISTORY_MAX, &cli->arena, history, &err);
    *ret = (struct cli_facts){.row = row,
                              .policy = policy,
                              .history = history,
                              .now_us = semel__now(&semel__clock_real),
                              .store = cli_value(args, "store") != NULL ? cli_store_shown(cli_value(args, "store"))
                                                                        : NULL};
    if (status == SEMEL_OK && semel__str_given(row->order_key) && policy->order != SEMEL_ORDER_NONE) {
        struct semel_scan scan = {.kind = SEMEL_SCAN_KEY,
                                  .consumer = row->consumer,
                                  .now_us = ret->now_us,
                                  .token = SEMEL_NONE,
                                  .after_arrival = SEMEL_NONE,
                                  .order_key = row->order_key,
                                  .by_version = policy->order == SEMEL_ORDER_VERSION,
                                  .max = CLI_KEY_MAX};
        status = semel_store_scan(store, &scan, &cli->arena, &rows, &n, &damaged, &err);
        cli_facts_key(ret, rows, n, n == CLI_KEY_MAX);
    }
    return status == SEMEL_OK ? CLI_OK : cli_fail_error(status, &err, "reading what is known of the message");
}
