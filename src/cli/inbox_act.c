/* SPDX-License-Identifier: MIT
 *
 * inbox_act.c: `semel inbox retry|discard|resolve`, one message at a time; with filters instead of ids inbox_bulk.c.
 *
 * Invariants: a command is about the row that was looked at: one that has been touched since is left alone (P43). The
 * row keeps its id (P41) and is changed by one transaction, together with its audit line (P42); core sees to that.
 */
#include "cli/inbox.h"

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "core/consumer.h"

#define TRIES 3 /* each waits for the store's own time-out */

const char *const inbox_result_names[] = {"done", "skipped", "refused"};
const char *const inbox_word_names[] = {"retry", "discard", "resolve"};

/* ---- the actor ----------------------------------------------------------------------------------- */

int cli_who(struct cli *cli, struct semel_str *ret)
{
    struct semel_error err = {0};
    struct passwd entry, *user = NULL;
    const char *given = getenv("SEMEL_USER"); /* NOLINT(concurrency-mt-unsafe): there are no threads */
    char host[128] = "", buf[4096], text[SEMEL_ID_MAX + 1];
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    if (getpwuid_r(geteuid(), &entry, buf, sizeof buf, &user) == 0 && user != NULL)
        snprintf(text, sizeof text, "%s@%s", user->pw_name, host);
    else
        snprintf(text, sizeof text, "uid-%lu@%s", (unsigned long)geteuid(), host);
    struct semel_str who = semel__str(given != NULL && given[0] != '\0' ? given : text);
    if (semel__id_check("SEMEL_USER", who, 1, &err) != SEMEL_OK)
        return cli_fail(CLI_USAGE, "%s", err.text);
    return semel__arena_copy(&cli->arena, who, ret) ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

int inbox_actor_init(struct inbox_actor *actor, struct cli *cli, struct semel_store *store, enum semel_order_word word)
{
    *actor = (struct inbox_actor){.store = store, .word = word};
    semel__arena_init(&actor->arena, (size_t)64 << 20);
    if (!semel__random_seed_os(&actor->rng))
        return cli_fail(CLI_FAILED, "the system gives no random numbers");
    return cli_who(cli, &actor->who);
}

static void forget_consumer(struct inbox_actor *actor)
{
    if (actor->ready)
        semel__inbox_done(&actor->inbox);
    actor->ready = false;
}

void inbox_actor_done(struct inbox_actor *actor)
{
    forget_consumer(actor);
    semel__arena_done(&actor->arena);
}

/* The inbox of that consumer, under its own policy; it stays until another one is asked for. */
static semel_status be_ready(struct inbox_actor *actor, struct semel_str consumer, struct semel_error *err)
{
    static const struct semel__handler nobody = {0}; /* a command runs nothing */
    struct semel_str name;
    bool said;
    if (actor->ready && semel__str_eq(actor->policy.consumer, consumer))
        return SEMEL_OK;
    forget_consumer(actor);
    semel__arena_reset(&actor->arena);
    if (!semel__arena_copy(&actor->arena, consumer, &name))
        return semel__fail_memory(err);
    semel_status status = semel__consumer_load(actor->store, name, &actor->arena, &actor->policy, &said, err);
    if (status != SEMEL_OK)
        return status;
    actor->policy.consumer = name;
    semel__inbox_init(&actor->inbox, actor->store, &actor->policy, &nobody, &actor->rng, actor->who);
    actor->ready = true;
    return SEMEL_OK;
}

/* How old it is, and what would be young enough. */
static void put_figure(struct inbox_actor *actor, const struct semel_selected *row, struct inbox_answer *ret)
{
    struct semel_filter filter = {.consumer = row->consumer,
                                  .source = row->source,
                                  .id = row->id,
                                  .received_before_us = SEMEL_NONE,
                                  .received_after_us = SEMEL_NONE};
    struct semel_arena arena;
    struct semel_row *rows = NULL;
    struct semel_buf buf;
    size_t n = 0, damaged;
    semel__arena_init(&arena, (size_t)16 << 20);
    semel__buf_init(&buf, sizeof ret->figure);
    if (semel_look_list(actor->store, &filter, SEMEL_NONE, 1, false, &arena, &rows, &n, &damaged, NULL) == SEMEL_OK &&
        n == 1)
        cli_put_age(&buf, &rows[0], &actor->policy, semel__now(&semel__clock_real));
    semel__str_show(ret->figure, sizeof ret->figure, semel__buf_str(&buf));
    semel__buf_done(&buf);
    semel__arena_done(&arena);
}

static semel_status act_once(struct inbox_actor *actor, const struct semel_selected *row, struct inbox_answer *ret,
                             struct semel_error *err)
{
    static const char before[] = "the message is "; /* core speaks of a replay, this command of a retry */
    bool done = false;
    semel_status status = be_ready(actor, row->consumer, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_command command = {.word = actor->word,
                                    .source = row->source,
                                    .id = row->id,
                                    .who = actor->who,
                                    .reason = actor->reason,
                                    .outcome = actor->outcome,
                                    .force = actor->force,
                                    .if_updated_us = row->updated_us};
    status = semel__inbox_command(&actor->inbox, &command, &done, &ret->state, err);
    if (status != SEMEL_OK && status != SEMEL_INVALID)
        return status;
    ret->result = status == SEMEL_INVALID ? INBOX_REFUSED : done ? INBOX_DONE : INBOX_SKIPPED;
    if (ret->result == INBOX_SKIPPED && ret->state == SEMEL_STATE_FAILED && actor->word == SEMEL_WORD_REPLAY &&
        strncmp(err->text, before, sizeof before - 1) == 0)
        snprintf(ret->text, sizeof ret->text, "is to be retried already: it has not run since");
    else if (ret->result == INBOX_SKIPPED && strncmp(err->text, before, sizeof before - 1) == 0)
        snprintf(ret->text, sizeof ret->text, "is %s: there is nothing to %s", semel__state_name(ret->state),
                 inbox_word_names[actor->word]);
    else if (ret->result != INBOX_DONE)
        semel__str_show(ret->text, sizeof ret->text, semel__str(err->text));
    if (status == SEMEL_INVALID && err->cls == SEMEL_CLASS_TOO_OLD)
        put_figure(actor, row, ret);
    return SEMEL_OK;
}

semel_status inbox_act(struct inbox_actor *actor, const struct semel_selected *row, struct inbox_answer *ret,
                       struct semel_error *err)
{
    semel_status status = SEMEL_OK;
    for (int i = 0; i < TRIES; i++) {
        *ret = (struct inbox_answer){.result = INBOX_SKIPPED};
        semel__error_clear(err);
        status = act_once(actor, row, ret, err);
        bool lost = status == SEMEL_UNKNOWN || status == SEMEL_CLOSED;
        if (lost && semel_store_reopen(actor->store, NULL) != SEMEL_OK)
            return status;
        if (!lost && status != SEMEL_RETRY)
            return status;
    }
    return status;
}

/* ---- one by one ---------------------------------------------------------------------------------- */

struct told {
    struct semel_str id, consumer, source, result, status;
    char text[1200];
};

/* What it does to others: a forced retry leaves versions behind that are missing, a discard frees business keys that
 * others wait for (A6). */
static int besides(struct cli *cli, const struct cli_args *args, struct inbox_actor *actor, struct semel_row *row,
                   char *ret, size_t size)
{
    struct cli_facts facts;
    struct semel_buf text;
    ret[0] = '\0';
    bool discard = actor->word == SEMEL_WORD_DISCARD;
    if (!discard && (!actor->force || row->live.error_class != SEMEL_CLASS_GAP))
        return CLI_OK;
    int code = inbox_facts(cli, args, actor->store, row, &facts);
    if (code != CLI_OK)
        return code;
    semel__buf_init(&text, size);
    if (discard)
        cli_put_freed(&facts, &text);
    else
        cli_put_stale(&facts, &text);
    semel__str_show(ret, size, semel__buf_str(&text));
    semel__buf_done(&text);
    return CLI_OK;
}

static int act_on(struct inbox_actor *actor, const struct semel_row *row, const char *more, struct told *told)
{
    static const char *const done[] = {"will be retried: it is due at once", "is discarded: it will never run",
                                       "is resolved: it is completed"};
    struct semel_selected selected = {.consumer = row->consumer,
                                      .source = row->source,
                                      .id = row->id,
                                      .updated_us = row->updated_us};
    struct inbox_answer answer;
    struct semel_error err = {0};
    semel_status status = inbox_act(actor, &selected, &answer, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, inbox_word_names[actor->word]);
    told->result = semel__str(inbox_result_names[answer.result]);
    told->status = semel__str(semel__state_name(answer.state));
    if (answer.result == INBOX_DONE && actor->word == SEMEL_WORD_REPLAY && answer.state == SEMEL_STATE_WAITING)
        snprintf(
            told->text, sizeof told->text,
            "is judged again: it runs if nothing is missing any more, else it waits anew; --force runs it without");
    else if (answer.result == INBOX_DONE)
        snprintf(told->text, sizeof told->text, "%s%s", done[actor->word], more);
    else if (strncmp(answer.text, "is ", 3) == 0)
        snprintf(told->text, sizeof told->text, "%s", answer.text);
    else
        snprintf(told->text, sizeof told->text, "was not touched: %s%s%s", answer.text,
                 answer.figure[0] != '\0' ? "; " : "", answer.figure);
    return answer.result == INBOX_DONE ? CLI_OK : CLI_REFUSED;
}

static int would_on(struct cli *cli, const struct cli_args *args, struct inbox_actor *actor, struct semel_row *row,
                    struct told *told)
{
    struct cli_facts facts;
    struct semel_buf text;
    int code = inbox_facts(cli, args, actor->store, row, &facts);
    if (code != CLI_OK)
        return code;
    semel__buf_init(&text, sizeof told->text);
    enum cli_would would = cli_explain_would(&facts, actor->word, actor->force, &text);
    told->result = would == CLI_WOULD ? SEMEL_STR("would") : SEMEL_STR("would not");
    told->status = semel__str(semel__state_name(row->live.state));
    semel__str_show(told->text, sizeof told->text, semel__buf_str(&text));
    semel__buf_done(&text);
    return would == CLI_WOULD ? CLI_OK : CLI_REFUSED;
}

static int one(struct cli *cli, const struct cli_args *args, struct inbox_actor *actor, const char *id,
               struct told *told)
{
    struct semel_row *row = NULL;
    bool damaged = false;
    char more[1000];
    int code = inbox_find(cli, args, actor->store, id, false, &row, &damaged);
    if (code == CLI_OK && damaged)
        code = cli_fail(CLI_FAILED, "the row of '%s' cannot be read, and is left alone; semel inbox show says more",
                        id);
    if (code != CLI_OK)
        return code;
    told->id = row->id;
    told->consumer = row->consumer;
    told->source = row->source;
    bool dry = cli_flag(args, "dry-run");
    if (!dry)
        code = besides(cli, args, actor, row, more, sizeof more);
    if (code == CLI_OK)
        code = dry ? would_on(cli, args, actor, row, told) : act_on(actor, row, more, told);
    if (told->text[0] == '\0')
        return code;
    if (code != CLI_OK)
        cli_fail(code, "%s %s", id, told->text);
    else
        cli_say(cli, "%s %s", id, told->text);
    return code;
}

static int print_told(const struct cli *cli, const struct told *told, size_t n)
{
    static const struct cli_column columns[] = {
        {"id", CLI_TEXT, false},     {"consumer", CLI_TEXT, false}, {"source", CLI_TEXT, false},
        {"result", CLI_TEXT, false}, {"status", CLI_TEXT, false},   {"text", CLI_TEXT, false},
    };
    struct cli_table *table = cli_table_new(cli, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n && table != NULL; i++) {
        if (told[i].text[0] == '\0')
            continue;
        cli_table_text(table, told[i].id);
        cli_table_text(table, told[i].consumer);
        cli_table_text(table, told[i].source);
        cli_table_text(table, told[i].result);
        cli_table_text(table, told[i].status);
        cli_table_text(table, semel__str(told[i].text));
    }
    return cli_table_print(table, NULL);
}

/* All done: 0. None done: what the first one met. Some done: FAILED, not all of it. */
static int each(struct cli *cli, const struct cli_args *args, struct inbox_actor *actor)
{
    size_t n = cli_n(args), done = 0;
    int first = CLI_OK;
    struct told *told = semel__arena_alloc(&cli->arena, n, sizeof *told);
    if (told == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        int code = one(cli, args, actor, cli_operand(args, i), &told[i]);
        done += code == CLI_OK;
        first = first == CLI_OK ? code : first;
    }
    int printed = cli->json ? print_told(cli, told, n) : CLI_OK;
    if (printed != CLI_OK)
        return printed;
    return first != CLI_OK && done > 0 ? CLI_FAILED : first;
}

static int check_outcome(const struct cli_args *args, enum semel_order_word word, struct semel_str *ret)
{
    struct semel_error err = {0};
    struct semel_json *json = NULL;
    *ret = word == SEMEL_WORD_RESOLVE ? semel__str(cli_value(args, "outcome")) : (struct semel_str){0};
    if (!semel__str_given(*ret))
        return CLI_OK;
    semel_status status = semel__json_parse(&json, *ret, SEMEL_OUTCOME_MAX, &err);
    semel__json_free(json);
    return status == SEMEL_OK ? CLI_OK : cli_fail(CLI_USAGE, "--outcome must be JSON: %s", err.text);
}

static int one_by_one(struct cli *cli, const struct cli_args *args, enum semel_order_word word)
{
    struct inbox_actor actor;
    struct semel_str outcome;
    const char *reason = cli_value(args, "reason");
    int code = check_outcome(args, word, &outcome);
    if (code != CLI_OK)
        return code;
    if (reason == NULL && !cli_flag(args, "dry-run"))
        return cli_fail(CLI_REFUSED, "say why: --reason TEXT goes into the audit");
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    code = inbox_actor_init(&actor, cli, store, word);
    actor.reason = semel__str(reason);
    actor.outcome = outcome;
    actor.force = word == SEMEL_WORD_REPLAY && cli_flag(args, "force");
    if (code == CLI_OK)
        code = each(cli, args, &actor);
    inbox_actor_done(&actor);
    semel_store_close(store);
    return code;
}

/* ---- the commands -------------------------------------------------------------------------------- */

static int run(struct cli *cli, const struct cli_args *args, enum semel_order_word word)
{
    static const char *const bulk_only[] = {"resume", "rate", "wait"};
    bool retry = word == SEMEL_WORD_REPLAY;
    if (cli_n(args) == 0)
        return inbox_in_bulk(cli, args, word);
    const char *filter = inbox_filter_given(args);
    for (size_t i = 0; filter == NULL && i < (retry ? 3 : 2); i++)
        filter = cli_value(args, bulk_only[i]) != NULL ? bulk_only[i] : NULL;
    if (filter != NULL)
        return cli_fail(CLI_USAGE, "--%s chooses by itself: give ids or filters, not both", filter);
    return one_by_one(cli, args, word);
}

static int run_retry(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_WORD_REPLAY);
}

static int run_discard(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_WORD_DISCARD);
}

static int run_resolve(struct cli *cli, const struct cli_args *args)
{
    return run(cli, args, SEMEL_WORD_RESOLVE);
}

#define ACT_OPTIONS                                                                                    \
    {"reason", 'r', "TEXT", "why; goes into the audit with your name ($SEMEL_USER, else your login)"}, \
        {"dry-run", 0, NULL, "say what would happen, and change nothing"}, INBOX_FILTER_OPTIONS,       \
        {"resume", 0, "N", "go on with selection N, whoever has made it"},                             \
        {"rate", 0, "N", "in bulk: at most N messages a second (default 50; 0: as fast as it goes)"},  \
        {"yes", 'y', NULL, "in bulk: do not ask"}, CLI_STORE_OPTION

static const struct cli_option retry_options[] = {
    ACT_OPTIONS,
    {"force", 0, NULL, "also what is older than the retention, never was fit to run, or waits for a missing version"},
    {"wait", 0, "DURATION", "in bulk: how long to watch the first one (default 10s)"},
    {"no-probe", 0, NULL, "in bulk: do not try the first one alone"},
    {NULL, 0, NULL, NULL},
};

static const struct cli_option discard_options[] = {ACT_OPTIONS, {NULL, 0, NULL, NULL}};

static const struct cli_option resolve_options[] = {
    ACT_OPTIONS,
    {"outcome", 0, "JSON", "what came of it, for duplicates that ask"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command inbox_retry = {
    .name = "retry",
    .summary = "have messages run again, under their own ids",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = retry_options,
    .help = "With ids, each message is made due at once, with a new budget of attempts; one that died of missing "
            "versions waits\n"
            "for them anew, and only --force runs it without, which leaves them stale. With filters instead of ids, "
            "what matches\n"
            "is counted, written down as a numbered selection, and worked through: the first message alone, and the "
            "rest only\n"
            "when that one did not fail again. A selection that was stopped can be resumed by its number, by anybody.\n"
            "\n"
            "Examples:\n"
            "  semel inbox retry pay-17 --reason 'bank is back'\n"
            "  semel inbox retry --dead --consumer billing --error timeout --dry-run\n"
            "  semel inbox retry --dead --consumer billing --error timeout --reason 'ticket 811' --yes\n"
            "  semel inbox retry --resume 7 --yes",
    .run = run_retry,
};

const struct cli_command inbox_discard = {
    .name = "discard",
    .summary = "skip messages for good",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = discard_options,
    .help = "A discarded message is rejected: it never runs, its business keys are free again, and what waited behind "
            "it in\n"
            "its key goes on. On a route by versions earlier ones that are missing are still waited for. With filters\n"
            "instead of ids a numbered selection is made, as for retry.\n"
            "\n"
            "Examples:\n"
            "  semel inbox discard pay-17 --reason 'test data'\n"
            "  semel inbox discard --dead --consumer billing --type Ping --reason 'nobody needs them' --yes",
    .run = run_discard,
};

const struct cli_command inbox_resolve = {
    .name = "resolve",
    .summary = "say that messages have had their effect",
    .operands = "[ID]...",
    .operands_max = 10000,
    .options = resolve_options,
    .help = "A resolved message is completed without being run: for those of status unknown whose effect turned out to "
            "have\n"
            "happened, or was made by hand. With filters instead of ids a numbered selection is made, as for retry.\n"
            "\n"
            "Example:\n"
            "  semel inbox resolve pay-17 --reason 'the bank has it, ref 4711' --outcome '{\"ref\":4711}'",
    .run = run_resolve,
};
