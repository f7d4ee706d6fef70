/* SPDX-License-Identifier: MIT
 *
 * rewind.c: `semel rewind`: shows how far a consumer has come in its source, and sets that back.
 *
 * Invariants: a position is set together with its line in the audit, in one transaction, and only if it still is where
 * the command may set it; a new epoch fences off whoever reads now, so that nothing moves it on from where it was.
 * Forward goes only who says --force, as what lies between is never read then.
 */
#include "base/error.h"
#include "cli/cli.h"
#include "core/row.h"
#include "ops/ops.h"

struct rewind {
    struct cli *cli;
    const struct cli_args *args;
    struct semel_store *store;
    struct semel_str consumer, source, who, reason; /* source not given: any */
    int64_t partition;                              /* SEMEL_NONE: any */
    int64_t to;                                     /* SEMEL_NONE: earliest */
    bool force;
};

/* What becomes of one partition. */
struct turn {
    struct semel_position position; /* as it is to be */
    int64_t from;
};

/* ---- looking ------------------------------------------------------------------------------------- */

static bool wanted(const struct rewind *r, const struct semel_position *p)
{
    return (!semel__str_given(r->source) || semel__str_eq(p->source, r->source)) &&
           (r->partition == SEMEL_NONE || p->partition == r->partition);
}

static semel_status pick(const struct rewind *r, struct semel_position **ret, size_t *ret_n, struct semel_error *err)
{
    semel_status status = semel_store_positions_list(r->store, r->consumer, SEMEL_POSITIONS_MAX, &r->cli->arena, ret,
                                                     ret_n, err);
    size_t n = 0;
    for (size_t i = 0; status == SEMEL_OK && i < *ret_n; i++)
        if (wanted(r, &(*ret)[i]))
            (*ret)[n++] = (*ret)[i];
    *ret_n = status == SEMEL_OK ? n : 0;
    return status;
}

static int nothing(const struct rewind *r)
{
    return cli_fail(CLI_NOTHING, "no position of '%.*s' is kept in this store%s", (int)r->consumer.n, r->consumer.p,
                    semel__str_given(r->source) || r->partition != SEMEL_NONE ? " that matches" : "");
}

static int list(const struct rewind *r)
{
    static const struct cli_column columns[] = {
        {"source", CLI_TEXT, true},   {"partition", CLI_NUMBER, false}, {"offset", CLI_NUMBER, false},
        {"epoch", CLI_NUMBER, false}, {"updated_at", CLI_TIME, false},
    };
    struct semel_position *positions = NULL;
    struct semel_error err = {0};
    size_t n = 0;
    semel_status status = pick(r, &positions, &n, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the positions");
    if (n == 0)
        return nothing(r);
    struct cli_table *table = cli_table_new(r->cli, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n && table != NULL; i++) {
        cli_table_text(table, positions[i].source);
        cli_table_number(table, positions[i].partition);
        cli_table_number(table, positions[i].offset);
        cli_table_number(table, positions[i].epoch);
        cli_table_number(table, positions[i].updated_us);
    }
    return cli_table_print(table);
}

/* ---- deciding ------------------------------------------------------------------------------------ */

/* An offset is that of one partition, which need not be known yet. */
static bool add_unknown(const struct rewind *r, struct semel_position *positions, size_t *n)
{
    if (*n > 0 || r->to == SEMEL_NONE)
        return false;
    positions[(*n)++] = (struct semel_position){.source = r->source,
                                                .partition = (int32_t)r->partition,
                                                .offset = SEMEL_NONE};
    return true;
}

static int refuse(const struct rewind *r, const struct semel_position *position)
{
    char name[72];
    semel__str_show(name, sizeof name, position->source);
    if (position->offset == SEMEL_NONE)
        return cli_fail(CLI_REFUSED,
                        "no position is stored for partition %d of %s: what lies before %lld would never be read; "
                        "--force sets it all the same",
                        position->partition, name, (long long)r->to);
    return cli_fail(CLI_REFUSED,
                    "partition %d of %s is at %lld: what lies between that and %lld would never be read; --force sets "
                    "it all the same",
                    position->partition, name, (long long)position->offset, (long long)r->to);
}

/* Decides what to do with each position, as it is now. 0, or an exit code. */
static int decide(const struct rewind *r, struct turn **ret, size_t *ret_n)
{
    struct semel_position *positions = NULL, unknown;
    struct semel_error err = {0};
    size_t n = 0;
    semel_status status = pick(r, &positions, &n, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reading the positions");
    if (add_unknown(r, &unknown, &n))
        positions = &unknown;
    if (n == 0)
        return nothing(r);
    struct turn *turns = semel__arena_alloc(&r->cli->arena, n, sizeof *turns);
    if (turns == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        bool ahead = r->to != SEMEL_NONE && (positions[i].offset == SEMEL_NONE || positions[i].offset < r->to);
        if (ahead && !r->force)
            return refuse(r, &positions[i]);
        turns[i] = (struct turn){.position = positions[i], .from = positions[i].offset};
        turns[i].position.offset = r->to;
    }
    *ret = turns;
    *ret_n = n;
    return CLI_OK;
}

/* ---- doing --------------------------------------------------------------------------------------- */

static void offset_text(int64_t offset, char out[32])
{
    if (offset == SEMEL_NONE)
        snprintf(out, 32, "none");
    else
        snprintf(out, 32, "%lld", (long long)offset);
}

static semel_status write_turn(const struct rewind *r, struct turn *turn, int64_t now_us, struct semel_error *err)
{
    char what[128], from[32], to[32];
    offset_text(turn->from, from);
    offset_text(turn->position.offset, to);
    snprintf(what, sizeof what, "rewind: partition %d from %s to %s", turn->position.partition, from, to);
    struct semel_audit line = {.consumer = r->consumer,
                               .source = turn->position.source,
                               .who = r->who,
                               .what = semel__str(what),
                               .reason = r->reason};
    semel_status status = semel_store_audit(r->store, &line, 1, now_us, err);
    return status == SEMEL_OK ? semel_store_positions_set(r->store, r->consumer, &turn->position, 1, now_us, err)
                              : status;
}

static int write_all(const struct rewind *r, struct turn **ret, size_t *ret_n)
{
    struct semel_error err = {0};
    int64_t now_us = 0;
    semel_status status = semel_store_begin(r->store, SEMEL_TX_OWN, &now_us, &err);
    int code = status == SEMEL_OK ? decide(r, ret, ret_n) : CLI_OK;
    for (size_t i = 0; status == SEMEL_OK && code == CLI_OK && i < *ret_n; i++)
        status = write_turn(r, &(*ret)[i], now_us, &err);
    if (status == SEMEL_OK && code == CLI_OK)
        status = semel_store_commit(r->store, &err);
    semel_store_rollback(r->store); /* nothing, after a commit */
    return status != SEMEL_OK ? cli_fail_error(status, &err, "setting the positions") : code;
}

static int print_turns(const struct rewind *r, const struct turn *turns, size_t n, bool done)
{
    static const struct cli_column columns[] = {
        {"source", CLI_TEXT, true}, {"partition", CLI_NUMBER, false}, {"from", CLI_NUMBER, false},
        {"to", CLI_NUMBER, false},  {"result", CLI_TEXT, false},
    };
    struct cli_table *table = cli_table_new(r->cli, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n && table != NULL; i++) {
        cli_table_text(table, turns[i].position.source);
        cli_table_number(table, turns[i].position.partition);
        cli_table_number(table, turns[i].from);
        cli_table_number(table, turns[i].position.offset);
        cli_table_text(table, done ? SEMEL_STR("done") : SEMEL_STR("would"));
    }
    return cli_table_print(table);
}

static int rewind_all(struct rewind *r)
{
    struct turn *turns = NULL;
    size_t n = 0;
    bool dry = cli_flag(r->args, "dry-run");
    int code = decide(r, &turns, &n);
    if (code == CLI_OK && dry) {
        code = print_turns(r, turns, n, false);
        cli_say(r->cli, "nothing was changed");
        return code;
    }
    if (code == CLI_OK)
        code = cli_confirm(r->args, "set %zu position%s?", n, n == 1 ? "" : "s");
    if (code == CLI_OK)
        code = cli_who(r->cli, &r->who);
    if (code == CLI_OK)
        code = write_all(r, &turns, &n); /* decided once more, as things are then */
    if (code != CLI_OK)
        return code;
    code = print_turns(r, turns, n, true);
    cli_say(r->cli, "whoever reads now is fenced off, and reads on from there");
    return code;
}

/* ---- the command line ---------------------------------------------------------------------------- */

static int check_to(struct rewind *r, const char *to)
{
    bool all = cli_flag(r->args, "all");
    bool earliest = strcmp(to, "earliest") == 0;
    r->to = SEMEL_NONE;
    if (!earliest && (!semel__str_int64(semel__str(to), &r->to) || r->to < 0 || r->to == INT64_MAX))
        return cli_fail(CLI_USAGE, "--to must be an offset, a whole number from 0, or earliest");
    if (all && (semel__str_given(r->source) || r->partition != SEMEL_NONE))
        return cli_fail(CLI_USAGE, "--all is all of them: it needs neither --source nor --partition");
    if (!all && !semel__str_given(r->source))
        return cli_fail(CLI_USAGE, "say which: --source TOPIC --partition N, or --all");
    if (!earliest && (all || r->partition == SEMEL_NONE))
        return cli_fail(CLI_USAGE,
                        "an offset is that of one partition: --source TOPIC --partition N, or --to earliest");
    return CLI_OK;
}

static int check_reason(struct rewind *r)
{
    struct semel_error err = {0};
    int code = cli_reason(r->args, !cli_flag(r->args, "dry-run"), &r->reason);
    if (code != CLI_OK || semel__ops_check(&(struct semel_instruction){.reason = r->reason}, true, &err) == SEMEL_OK)
        return code;
    return cli_fail(CLI_USAGE, "--%s", err.text);
}

static int check_names(const struct rewind *r)
{
    struct semel_error err = {0};
    if (semel__id_check("the name of a consumer", r->consumer, 1, &err) != SEMEL_OK ||
        semel__id_check("--source", r->source, 0, &err) != SEMEL_OK)
        return cli_fail(CLI_USAGE, "%s", err.text);
    return CLI_OK;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    static const char *const only_with_to[] = {"all", "dry-run", "force", "yes"};
    struct rewind r = {.cli = cli,
                       .args = args,
                       .consumer = semel__str(cli_operand(args, 0)),
                       .source = semel__str(cli_value(args, "source")),
                       .force = cli_flag(args, "force")};
    const char *to = cli_value(args, "to");
    if (!cli_int(args, "partition", 0, INT32_MAX, SEMEL_NONE, &r.partition))
        return CLI_USAGE;
    for (size_t i = 0; to == NULL && i < sizeof only_with_to / sizeof only_with_to[0]; i++)
        if (cli_flag(args, only_with_to[i]))
            return cli_fail(CLI_USAGE, "--%s needs --to: an offset, or earliest", only_with_to[i]);
    int code = check_names(&r);
    if (code == CLI_OK && to != NULL)
        code = check_to(&r, to);
    if (code == CLI_OK && to != NULL)
        code = check_reason(&r);
    if (code != CLI_OK)
        return code;
    r.store = cli_store_open(args, false, &code);
    if (r.store == NULL)
        return code;
    code = to != NULL ? rewind_all(&r) : list(&r);
    semel_store_close(r.store);
    return code;
}

static const struct cli_option options[] = {
    {"source", 0, "TOPIC", "only this source"},
    {"partition", 'p', "N", "only this partition"},
    {"all", 0, NULL, "every partition whose position is stored"},
    {"to", 0, "OFFSET", "the offset that is read next; earliest: none is stored any more, the route's `first` decides"},
    {"reason", 'r', "TEXT", "why; goes to the audit log with your name ($SEMEL_USER, else your login)"},
    {"dry-run", 0, NULL, "say what would happen, and change nothing"},
    {"force", 0, NULL, "also forward: what lies between is never read"},
    {"yes", 'y', NULL, "do not ask"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_rewind = {
    .name = "rewind",
    .summary = "show how far a consumer has come in its source, and set that back",
    .operands = "CONSUMER",
    .operands_min = 1,
    .operands_max = 1,
    .options = options,
    .help =
        "For routes that keep their positions in the store, with the effects. Without --to the positions are listed: "
        "the offset\n"
        "is the next one to be read, the epoch is raised by everybody who gets the partition.\n"
        "\n"
        "Nothing happens twice: messages that are read again and were done already are duplicates. A message that is "
        "older\n"
        "than the consumer's retention is quarantined instead of run, as its record may be gone. A daemon that "
        "runs notices\n"
        "by itself and reads on from there.\n"
        "\n"
        "Exit code 3: no position matches. 4: no --reason, or the offset lies ahead and there is no --force.\n"
        "\n"
        "Examples\n"
        "  semel rewind billing --store postgres://app@db/shop\n"
        "  semel rewind billing --source payments --partition 3 --to 1200 --reason 'ticket 811'\n"
        "  semel rewind billing --all --to earliest --reason 'rebuild' --yes",
    .run = run,
};
