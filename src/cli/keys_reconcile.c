/* SPDX-License-Identifier: MIT
 *
 * keys_reconcile.c: `semel keys reconcile`: asks the URL of the key's rule now what became of it, and ends the key by
 * the answer, as the gateway does when its request comes again.
 *
 * Invariants: `not_done` counts only when the first call can no longer be running (P95), by the database's clock. The
 * key is ended as it was when it was asked about: one that another request has by now is left alone. Nothing is asked
 * twice.
 */
#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"
#include "conf/conf.h"
#include "gateway/ask.h"
#include "net/http.h"
#include "ops/ops.h"

/* ---- the rule ------------------------------------------------------------------------------------ */

struct rule {
    const struct semel_conf_gateway *gateway;
    const struct semel_conf_guard *guard;
};

/* That under which the key was claimed; a long one is stored in part. */
static bool find_rule(const struct semel_conf *conf, struct semel_str name, struct rule *ret)
{
    for (size_t i = 0; name.n > 0 && i < conf->n_gateways; i++)
        for (size_t k = 0; k < conf->gateways[i].n_guard; k++) {
            const struct semel_conf_guard *guard = &conf->gateways[i].guard[k];
            if (guard->match.n >= name.n && memcmp(guard->match.p, name.p, name.n) == 0 &&
                semel__str_given(guard->reconcile)) {
                *ret = (struct rule){&conf->gateways[i], guard};
                return true;
            }
        }
    return false;
}

static int load(const char *file, struct semel_conf **ret)
{
    struct semel_conf_mistakes *mistakes = semel__calloc(1, sizeof *mistakes);
    struct semel_error err = {0};
    int code = CLI_OK;
    if (mistakes == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    semel__conf_mistakes_init(mistakes);
    semel_status status = semel__conf_load(file, ret, mistakes, &err);
    if (status != SEMEL_OK)
        code = mistakes->n > 0 ? cli_conf_mistakes(file, mistakes) : cli_fail(CLI_FAILED, "%s", err.text);
    semel__conf_mistakes_done(mistakes);
    semel__free(mistakes);
    return code;
}

/* ---- asking -------------------------------------------------------------------------------------- */

struct asking {
    struct semel_http *http;
    enum semel_ask_state state;
    int status; /* of the answer; 0: there was none */
    int64_t code;
    struct semel_buf outcome;
};

static void asked(void *ctx, int status, struct semel_str body)
{
    struct asking *a = ctx;
    a->status = status;
    a->state = semel__ask_state(status, body, &a->code, &a->outcome);
    semel__http_stop(a->http, 0);
}

/* 0: there is an answer, or none that says anything. */
static int ask(const struct rule *rule, const struct semel_idempotency *row, struct asking *a)
{
    const struct semel_conf_upstream *up = &rule->gateway->upstream;
    struct semel_upstream_settings settings;
    struct semel_asker *asker = NULL;
    struct semel_error err = {0};
    const char *why = NULL;
    semel__upstream_settings_init(&settings);
    settings.ca_file = up->ca_file;
    settings.answer_ms = (uint64_t)up->timeout_us / 1000;
    settings.connect_ms = (uint64_t)up->connect_us / 1000;
    semel_status status = semel__http_new(&a->http, NULL, &err);
    if (status == SEMEL_OK)
        status = semel__asker_new(&asker, a->http, "reconcile", rule->guard->reconcile.p, &settings, &err);
    if (status == SEMEL_OK && !semel__ask(asker, row->key, row->scope, SEMEL_STR(""), asked, a, &why))
        status = semel__fail(&err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s", why);
    if (status == SEMEL_OK)
        status = semel__http_run(a->http, &err);
    semel__http_free(a->http);
    semel__asker_free(asker);
    return status == SEMEL_OK ? CLI_OK : cli_fail(CLI_FAILED, "asking %s: %s", rule->guard->reconcile.p, err.text);
}

/* ---- the command --------------------------------------------------------------------------------- */

static int end(struct cli *cli, const struct cli_args *args, struct semel_ops *ops, const struct semel_key_row *shown,
               const struct asking *a)
{
    char key[SEMEL_ID_MAX + 1];
    struct semel_key_told told;
    struct semel_error err = {0};
    const bool done = a->state == SEMEL_ASK_DONE, body = a->outcome.n > 0;
    struct semel_key_instruction given = {.kind = SEMEL_COMMAND_RESOLVE,
                                          .not_done = !done,
                                          .code = done ? a->code : SEMEL_NONE,
                                          .token = shown->row.token};
    int code = cli_reason(args, true, &given.reason);
    if (code != CLI_OK)
        return code;
    if (done && body) {
        given.headers = SEMEL_STR("[[\"content-type\",\"application/json\"]]");
        given.body = semel__buf_str(&a->outcome);
    }
    semel_status status = semel__ops_key_check(&given, false, &err);
    if (status == SEMEL_OK)
        status = semel__ops_key_command(ops, &given, shown->row.scope, shown->row.key, false, &told, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "reconcile");
    semel__str_show(key, sizeof key, shown->row.key);
    if (told.kind == SEMEL_DID)
        cli_say(cli, "%s %s", key, told.text);
    else
        code = cli_fail(told.judged == SEMEL_KEY_NO_SUCH ? CLI_NOTHING : CLI_REFUSED, "%s %s", key, told.text);
    if (cli->json) {
        struct semel_buf json;
        semel__buf_init(&json, CLI_JSON_MAX);
        semel__ops_json_key_told(&json, &told);
        const int printed = cli_json_print(&json);
        code = printed != CLI_OK ? printed : code;
    }
    return code;
}

/* May the key be ended by this answer? */
static int judge(struct semel_ops *ops, const struct rule *rule, const struct semel_idempotency *found,
                 const struct asking *a)
{
    const int64_t settle_us = rule->guard->settle_us > 0 ? rule->guard->settle_us
                                                         : 2 * rule->gateway->upstream.timeout_us;
    struct semel_idempotency row = *found;
    struct semel_error err = {0};
    char key[SEMEL_ID_MAX + 1], left[32];
    int64_t now_us;
    semel__str_show(key, sizeof key, row.key);
    if (a->state == SEMEL_ASK_UNKNOWN)
        return cli_fail(CLI_FAILED, "%s stays unknown: %s says neither done nor not_done (status %d)", key,
                        rule->guard->reconcile.p, a->status);
    if (a->state == SEMEL_ASK_DONE)
        return CLI_OK;
    semel_status status = semel_store_begin(ops->store, SEMEL_TX_OWN, &now_us, &err);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "asking the store for the time");
    semel_store_rollback(ops->store);
    if (row.status == SEMEL_STATE_PROCESSING && row.lease_until_us > row.updated_us)
        row.updated_us = row.lease_until_us; /* its call may have begun as late as that */
    if (semel__key_may_run(&row, SEMEL_ON_UNKNOWN_RECONCILE, SEMEL_RECONCILED_NOT_DONE, settle_us, now_us))
        return CLI_OK;
    semel__duration_format((settle_us - (now_us - row.updated_us)) / 1000000 * 1000000 + 1000000, left, sizeof left);
    return cli_fail(CLI_REFUSED,
                    "%s stays unknown: it was not done, but its call may still be running; ask again in %s", key, left);
}

static int reconcile(struct cli *cli, const struct cli_args *args, struct semel_ops *ops, const struct semel_conf *conf)
{
    struct asking a = {.state = SEMEL_ASK_UNKNOWN};
    struct semel_key_facts facts;
    struct semel_error err = {0};
    struct rule rule;
    semel_status status = semel__ops_key(ops, semel__str(cli_operand(args, 0)), semel__str(cli_operand(args, 1)), false,
                                         &facts, &err);
    if (status == SEMEL_INVALID && err.cls == SEMEL_CLASS_PERMANENT)
        return cli_fail(CLI_USAGE, "%s", err.text);
    if (status != SEMEL_OK)
        return cli_fail_error(status, &err, "looking for the key");
    if (facts.row == NULL)
        return cli_fail(CLI_NOTHING, "there is no such key: it was released, its lifetime is over, or it never was");
    const struct semel_idempotency *row = &facts.row->row;
    if (row->status == SEMEL_STATE_COMPLETED)
        return cli_fail(CLI_REFUSED, "this key has its answer, which never changes");
    if (row->status == SEMEL_STATE_PROCESSING &&
        (row->lease_until_us == SEMEL_NONE || row->lease_until_us >= facts.now_us))
        return cli_fail(CLI_REFUSED, "its request is running, and its lease is alive: wait for its end");
    if (!find_rule(conf, row->rule, &rule))
        return cli_fail(
            CLI_REFUSED,
            "no gateway of the settings has the rule of this key with a URL to reconcile; resolve it by what "
            "you find out: semel keys resolve -h");
    semel__buf_init(&a.outcome, SEMEL_ASK_ANSWER_MAX);
    int code = ask(&rule, row, &a);
    if (code == CLI_OK)
        code = judge(ops, &rule, row, &a);
    if (code == CLI_OK)
        code = end(cli, args, ops, facts.row, &a);
    semel__buf_done(&a.outcome);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *file = cli_value(args, "settings");
    struct semel_conf *conf = NULL;
    struct semel_str reason;
    struct semel_ops ops;
    if (file == NULL)
        return cli_fail(CLI_USAGE, "--settings FILE is required: its gateways have the URL that is asked");
    int code = cli_reason(args, true, &reason);
    if (code == CLI_OK)
        code = load(file, &conf);
    if (code == CLI_OK)
        code = cli_ops_open(cli, args, true, &ops);
    if (code == CLI_OK) {
        code = reconcile(cli, args, &ops, conf);
        cli_ops_close(&ops);
    }
    semel__conf_free(conf);
    return code;
}

static const struct cli_option options[] = {
    {"settings", 'f', "FILE", "the settings of semel run, whose gateways have the URL (needed)"},
    {"reason", 'r', "TEXT", "why; goes to the audit log with your name ($SEMEL_USER, else your login)"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_keys_reconcile = {
    .name = "reconcile",
    .summary = "ask now what became of a key whose outcome is unknown, and end it by the answer",
    .operands = "CALLER KEY",
    .operands_min = 2,
    .operands_max = 2,
    .options = options,
    .help =
        "Asks the URL `reconcile` of the rule that the key was claimed under. done ends it with the answer that is\n"
        "named there, not_done releases it, once its first call can no longer be running; else it stays unknown\n"
        "(exit codes 1 and 4). The gateway does the same by itself when the request comes again.\n"
        "\n"
        "Example:\n"
        "  semel keys reconcile customer-17 7d0f1f2e-8a4b-4c55 --settings semel.yaml --reason 'ticket 811'",
    .run = run,
};
