/* SPDX-License-Identifier: MIT
 *
 * inbox_bulk.c: retry, discard or resolve what a filter matches, by a frozen selection (I16, P43).
 *
 *   1. what matches is counted and grouped by its cause, and shown; --dry-run ends here;
 *   2. it is written down as a numbered selection: rows that come later are no part of it, and a row that has changed
 *      since is left alone, whoever has changed it;
 *   3. a retry tries the first message alone and goes on only when it did not fail again;
 *   4. the rest follows at --rate, each row in its own transaction, then its place in the selection is marked. Who dies
 *      between the two finds the row changed when the selection is resumed: nothing is done twice (P42);
 *   5. it stops when the cause turns out to be there still, or on a signal, always between two messages, and says how
 *      to go on.
 */
#include <unistd.h>

#include "base/error.h"
#include "cli/inbox.h"

#define RATE 50
#define RATE_MAX 100000
#define WAIT_US INT64_C(10000000)
#define LOOK_EVERY 20 /* messages, or a second */
#define TRIES 3

struct bulk {
    struct cli *cli;
    const struct cli_args *args;
    struct inbox_actor actor;
    struct semel_selection selection;
    int64_t rate, wait_us;
    bool probing; /* the next one that is retried is watched */
    struct inbox_tally *tally;
    struct inbox_watch *watch;
    int64_t next_us, looked_us; /* pace: when the next one may go; when the released were looked at */
    int64_t since_look;
    const char *stopped; /* why it ended early: a word for programs; NULL: it did not */
    char cause[700];     /* the same for people */
};

/* ---- before it begins ---------------------------------------------------------------------------- */

static int confirm(const struct bulk *b)
{
    char answer[16] = "";
    if (b->actor.word == SEMEL_WORD_REPLAY) {
        char rate[64];
        snprintf(rate, sizeof rate, b->rate > 0 ? "%lld messages a second" : "messages as fast as they go",
                 (long long)b->rate);
        cli_fail(
            0,
            "before a retry in bulk: is the cause mended, do the payloads fit the handler of today, and can what is "
            "downstream take %s?",
            rate);
    }
    if (cli_flag(b->args, "yes"))
        return CLI_OK;
    if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1)
        return cli_fail(CLI_USAGE, "there is no terminal to ask on: say --yes to go on");
    fprintf(stderr, "continue? [y/N] ");
    fflush(stderr);
    if (fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y'))
        return CLI_OK;
    return cli_fail(CLI_FAILED, "nothing was done");
}

static int freeze(struct bulk *b, const struct semel_filter *filter)
{
    struct semel_selection *selection = &b->selection;
    struct semel_store *store = b->actor.store;
    struct semel_error err = {0};
    int64_t now_us;
    *selection = (struct semel_selection){.word = semel__str(inbox_word_names[b->actor.word]),
                                          .who = b->actor.who,
                                          .reason = b->actor.reason,
                                          .force = b->actor.force};
    semel_status status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, &err);
    if (status == SEMEL_OK) {
        status = semel_look_select(store, filter, INBOX_SELECTION_MAX, now_us, selection, &err);
        if (status == SEMEL_OK)
            status = semel_store_commit(store, &err);
        else
            semel_store_rollback(store);
    }
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "writing the selection down");
    if (selection->n == 0)
        return cli_fail(CLI_NOTHING, "no message matches any more");
    /* Said before anything is done to it, so that it can be resumed whatever happens. */
    fprintf(b->cli->json ? stderr : stdout, "selection %lld: %lld messages\n", (long long)selection->number,
            (long long)selection->n);
    fflush(stdout);
    return CLI_OK;
}

static int check_states(const struct bulk *b, unsigned states)
{
    static const unsigned open = 1u << SEMEL_STATE_DEAD | 1u << SEMEL_STATE_QUARANTINED | 1u << SEMEL_STATE_UNKNOWN |
                                 1u << SEMEL_STATE_FAILED | 1u << SEMEL_STATE_WAITING;
    const char *word = inbox_word_names[b->actor.word];
    if (states == 0)
        return cli_fail(CLI_USAGE,
                        "name messages, or say which: --dead, or --status with a list; see semel inbox %s -h", word);
    if ((states & ~open) != 0)
        return cli_fail(CLI_USAGE,
                        "--status names what there is nothing to %s about: only dead, failed, unknown, waiting and "
                        "quarantined are unfinished",
                        word);
    return CLI_OK;
}

static int choose(struct bulk *b, bool *ret_dry)
{
    struct semel_filter filter;
    const char *reason = cli_value(b->args, "reason");
    if (!inbox_filter(b->args, semel__now(&semel__clock_real), &filter))
        return CLI_USAGE;
    int code = check_states(b, filter.states);
    if (code == CLI_OK && reason == NULL && !cli_flag(b->args, "dry-run"))
        code = cli_fail(CLI_REFUSED, "say why: --reason TEXT goes into the audit");
    if (code == CLI_OK && reason != NULL &&
        (reason[0] == '\0' || strlen(reason) > SEMEL_ERROR_TEXT_MAX || !semel__utf8_valid(semel__str(reason))))
        code = cli_fail(CLI_USAGE, "--reason must be UTF-8 text of 1 to %d bytes", SEMEL_ERROR_TEXT_MAX);
    b->actor.reason = semel__str(reason);
    b->actor.force = b->actor.word == SEMEL_WORD_REPLAY && cli_flag(b->args, "force");
    if (code == CLI_OK)
        code = inbox_count(b->cli, b->args, b->actor.store, &filter, b->actor.word, ret_dry);
    if (code != CLI_OK || *ret_dry)
        return code;
    code = confirm(b);
    if (code != CLI_OK)
        return code;
    inbox_catch();
    return freeze(b, &filter);
}

static int no_filters(const struct bulk *b)
{
    const char *given = inbox_filter_given(b->args);
    if (given == NULL && cli_value(b->args, "consumer") != NULL)
        given = "consumer";
    if (given == NULL && cli_value(b->args, "source") != NULL)
        given = "source";
    if (given == NULL && cli_value(b->args, "reason") != NULL)
        given = "reason";
    if (given == NULL && b->actor.word == SEMEL_WORD_REPLAY && cli_flag(b->args, "force"))
        given = "force";
    return given == NULL ? CLI_OK
                         : cli_fail(CLI_USAGE, "--%s and --resume: a selection keeps what it was made with", given);
}

/* Takes up a selection that somebody has made: its word, reason and force are those written down. */
static int take_up(struct bulk *b, bool *ret_dry)
{
    const char *word = inbox_word_names[b->actor.word];
    struct semel_error err = {0};
    int64_t number;
    int code = no_filters(b);
    if (code != CLI_OK || !cli_int(b->args, "resume", 1, INT64_MAX, 0, &number))
        return CLI_USAGE;
    semel_status status = semel_look_selection(b->actor.store, number, &b->cli->arena, &b->selection, &err);
    if (status == SEMEL_INVALID)
        return cli_fail(CLI_NOTHING, "there is no selection %lld", (long long)number);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the selection");
    if (!semel__str_eqz(b->selection.word, word))
        return cli_fail(CLI_USAGE, "selection %lld is not for %s: semel inbox %.*s --resume %lld", (long long)number,
                        word, (int)b->selection.word.n, b->selection.word.p, (long long)number);
    b->actor.reason = b->selection.reason;
    b->actor.force = b->selection.force;
    *ret_dry = cli_flag(b->args, "dry-run");
    cli_say(b->cli, "selection %lld: %lld of %lld messages are left", (long long)number, (long long)b->selection.left,
            (long long)b->selection.n);
    if (*ret_dry)
        return inbox_count_dry(b->cli, b->actor.word, b->selection.left, NULL, 0);
    if (b->selection.left > 0)
        code = confirm(b);
    if (code == CLI_OK)
        inbox_catch();
    return code;
}

/* ---- working through it -------------------------------------------------------------------------- */

static void stop(struct bulk *b, const char *word, const char *cause)
{
    b->stopped = word;
    snprintf(b->cause, sizeof b->cause, "%s", cause);
}

static semel_status mark(struct bulk *b, int64_t place, enum inbox_result result, struct semel_error *err)
{
    struct semel_store *store = b->actor.store;
    semel_status status = SEMEL_OK;
    for (int i = 0; i < TRIES; i++) {
        int64_t now_us;
        status = semel_store_begin(store, SEMEL_TX_OWN, &now_us, err);
        if (status == SEMEL_OK) {
            status = semel_look_mark(store, b->selection.number, place, semel__str(inbox_result_names[result]), err);
            if (status == SEMEL_OK)
                status = semel_store_commit(store, err);
            else
                semel_store_rollback(store);
        }
        if (status == SEMEL_UNKNOWN || status == SEMEL_CLOSED)
            (void)semel_store_reopen(store, NULL); /* a place that is marked already stays as it is */
        else if (status != SEMEL_RETRY)
            break;
    }
    return status;
}

/* Watches the first one that was retried. */
static semel_status probe(struct bulk *b, const struct semel_selected *row, struct semel_error *err)
{
    struct inbox_sight sight;
    char text[700];
    semel_status status = inbox_probe(&b->actor, row, b->wait_us, &sight, err);
    if (status != SEMEL_OK || inbox_interrupted())
        return status;
    switch (sight.fate) {
    case INBOX_ENDED:
        b->probing = false;
        break;
    case INBOX_PARKED: /* it proves nothing: the next one is tried */
        break;
    case INBOX_FAILED:
        snprintf(text, sizeof text, "the cause is still there: %s", sight.cause);
        stop(b, "cause", text);
        break;
    case INBOX_RUNNING:
        stop(b, "running",
             "a worker has the first message and has not ended it within --wait; wait longer for it, or go "
             "on with --no-probe");
        break;
    case INBOX_PENDING:
        stop(b, "no_worker",
             "nobody has taken the first message within --wait: no worker seems to run for this "
             "consumer; start one, or go on with --no-probe");
        break;
    }
    return SEMEL_OK;
}

/* From time to time: have those that were released failed again? */
static semel_status look_back(struct bulk *b, struct semel_error *err)
{
    struct inbox_sight sight;
    char text[700];
    int64_t now_us = semel__now(&semel__clock_real);
    if (++b->since_look < LOOK_EVERY && now_us - b->looked_us < 1000000 && now_us >= b->looked_us)
        return SEMEL_OK;
    b->since_look = 0;
    b->looked_us = now_us;
    semel_status status = inbox_watch_look(b->watch, &b->actor, &sight, err);
    if (status == SEMEL_OK && sight.fate == INBOX_FAILED) {
        snprintf(text, sizeof text, "most of the last that ran have failed again: %s", sight.cause);
        stop(b, "cause", text);
    }
    return status == SEMEL_RETRY ? SEMEL_OK : status;
}

/* Waits for the turn of the next one. What was skipped or refused costs nobody anything, and is not waited for. */
static void pace(const struct bulk *b)
{
    int64_t wait_us = b->next_us - semel__now(&semel__clock_real);
    if (b->rate > 0 && wait_us > 0 && wait_us <= 1000000 / b->rate) /* more: the clock was set */
        (void)inbox_pause(wait_us);
}

static void went(struct bulk *b)
{
    int64_t now_us = semel__now(&semel__clock_real), step_us = b->rate > 0 ? 1000000 / b->rate : 0;
    bool steady = b->next_us <= now_us && now_us - b->next_us < step_us; /* what was waited too long is made good */
    b->next_us = (steady ? b->next_us : now_us) + step_us;
}

static void show_progress(const struct bulk *b)
{
    int64_t done = 0;
    if (isatty(STDERR_FILENO) != 1)
        return;
    for (enum inbox_result r = INBOX_DONE; r <= INBOX_REFUSED; r++)
        done += inbox_tally_n(b->tally, r);
    fprintf(stderr, "\r%lld of %lld ", (long long)done, (long long)b->selection.left);
    if (done == b->selection.left)
        fprintf(stderr, "\n");
}

/* One message, from the selection to its mark. *ret_more = false: none was left. */
static semel_status handle_one(struct bulk *b, struct semel_arena *arena, bool *ret_more, struct semel_error *err)
{
    struct semel_selected *rows = NULL;
    struct inbox_answer answer;
    size_t n = 0;
    semel__arena_reset(arena);
    semel_status status = semel_look_selected(b->actor.store, b->selection.number, 1, arena, &rows, &n, err);
    *ret_more = n > 0;
    if (status != SEMEL_OK || n == 0)
        return status;
    pace(b);
    if (inbox_interrupted())
        return SEMEL_OK;
    status = inbox_act(&b->actor, &rows[0], &answer, err);
    if (status != SEMEL_OK)
        return status;
    if (answer.result == INBOX_SKIPPED && strncmp(answer.text, "is ", 3) != 0 && answer.state != SEMEL_STATE_ABSENT)
        snprintf(answer.text, sizeof answer.text, "already handled: it has changed since it was chosen");
    inbox_tally_add(b->tally, &rows[0], &answer);
    status = mark(b, rows[0].place, answer.result, err);
    if (status != SEMEL_OK)
        return status;
    show_progress(b);
    if (answer.result == INBOX_DONE)
        went(b);
    if (answer.result != INBOX_DONE || b->actor.word != SEMEL_WORD_REPLAY)
        return SEMEL_OK;
    if (b->probing)
        return probe(b, &rows[0], err);
    inbox_watch_add(b->watch, &rows[0]);
    return look_back(b, err);
}

static void work(struct bulk *b)
{
    struct semel_arena arena;
    struct semel_error err = {0};
    bool more = true;
    semel__arena_init(&arena, (size_t)16 << 20);
    while (more && b->stopped == NULL) {
        semel_status status = handle_one(b, &arena, &more, &err);
        if (status != SEMEL_OK)
            stop(b, "store", err.text);
        else if (b->stopped == NULL && more && inbox_interrupted())
            stop(b, "interrupted", "interrupted");
    }
    semel__arena_done(&arena);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static int end_code(const struct bulk *b)
{
    if (b->stopped != NULL) {
        if (strcmp(b->stopped, "interrupted") == 0)
            return CLI_INTERRUPTED;
        return strcmp(b->stopped, "store") == 0 ? CLI_STORE : CLI_STOPPED;
    }
    if (inbox_tally_n(b->tally, INBOX_REFUSED) == 0)
        return CLI_OK;
    return inbox_tally_n(b->tally, INBOX_DONE) > 0 ? CLI_FAILED : CLI_REFUSED;
}

static int report(struct bulk *b)
{
    struct semel_selection now = b->selection;
    struct semel_buf resume;
    struct cli_object o;
    int printed, code = end_code(b);
    (void)semel_look_selection(b->actor.store, b->selection.number, &b->cli->arena, &now, NULL);
    semel__buf_init(&resume, CLI_EXPLAIN_MAX);
    semel__buf_addf(&resume, "semel inbox %s --resume %lld", inbox_word_names[b->actor.word], (long long)now.number);
    if (cli_value(b->args, "store") != NULL) {
        semel__buf_addz(&resume, " --store ");
        cli_put_word(&resume, semel__str(cli_store_shown(cli_value(b->args, "store"))));
    }
    struct semel_str go_on = semel__buf_str(&resume);
    if (b->cli->json) {
        cli_object_init(&o);
        cli_object_number(&o, "selection", now.number);
        cli_object_text(&o, "word", now.word);
        cli_object_number(&o, "messages", now.n);
        cli_object_number(&o, "done", inbox_tally_n(b->tally, INBOX_DONE));
        cli_object_number(&o, "skipped", inbox_tally_n(b->tally, INBOX_SKIPPED));
        cli_object_number(&o, "refused", inbox_tally_n(b->tally, INBOX_REFUSED));
        cli_object_number(&o, "left", now.left);
        cli_object_text(&o, "stopped", semel__str(b->stopped));
        cli_object_text(&o, "cause", b->stopped != NULL ? semel__str(b->cause) : (struct semel_str){0});
        cli_object_text(&o, "resume", now.left > 0 ? go_on : (struct semel_str){0});
        inbox_tally_json(b->tally, &o, "results");
        printed = cli_object_print(&o);
    } else {
        printed = inbox_tally_print(b->cli, b->tally);
        cli_say(b->cli, "selection %lld: %lld of %lld messages are left", (long long)now.number, (long long)now.left,
                (long long)now.n);
    }
    if (b->stopped != NULL)
        cli_fail(code, "%s", b->cause);
    if (now.left > 0)
        cli_fail(code, "to go on: %.*s", (int)go_on.n, go_on.p);
    semel__buf_done(&resume);
    return printed != CLI_OK ? printed : code;
}

static int run(struct bulk *b)
{
    bool dry = false, retry = b->actor.word == SEMEL_WORD_REPLAY;
    b->wait_us = WAIT_US;
    if (!cli_int(b->args, "rate", 0, RATE_MAX, RATE, &b->rate) ||
        (retry && !cli_duration(b->args, "wait", WAIT_US, &b->wait_us)))
        return CLI_USAGE;
    if (b->actor.word == SEMEL_WORD_RESOLVE && cli_value(b->args, "outcome") != NULL)
        return cli_fail(CLI_USAGE, "--outcome belongs to one message: name it by its id");
    b->probing = retry && !cli_flag(b->args, "no-probe");
    int code = cli_value(b->args, "resume") != NULL ? take_up(b, &dry) : choose(b, &dry);
    if (code != CLI_OK || dry)
        return code;
    b->tally = inbox_tally_new();
    b->watch = inbox_watch_new();
    if (b->tally != NULL && b->watch != NULL) {
        work(b);
        code = report(b);
    } else {
        code = cli_fail(CLI_FAILED, "out of memory");
    }
    inbox_tally_free(b->tally);
    inbox_watch_free(b->watch);
    return code;
}

int inbox_in_bulk(struct cli *cli, const struct cli_args *args, enum semel_order_word word)
{
    struct bulk b = {.cli = cli, .args = args};
    int code = CLI_OK;
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    code = inbox_actor_init(&b.actor, cli, store, word);
    if (code == CLI_OK)
        code = run(&b);
    inbox_actor_done(&b.actor);
    semel_store_close(store);
    return code;
}
