/* SPDX-License-Identifier: MIT
 *
 * check.c: `semel check`: finds the mistakes in a file of settings, or says what each of its routes promises.
 *
 * What is right is conf's to know; here it is only told. Servers are asked only with --online, by online.h.
 *
 * Invariants: a file with a mistake has no answers: either the mistakes are told, or the promises.
 */
#include "cli/online.h"
#include "cli/settings.h"

#define TEXT_MAX_BYTES ((size_t)1 << 20)

/* ---- for people ---------------------------------------------------------------------------------- */

static void say_route(const struct cli *cli, const struct semel_route *route)
{
    const struct semel_promise *promise = &route->promise;
    cli_say(cli, "%s: %s (from %s, do %s)", route->name.p, semel__guarantee_name(promise->guarantee),
            route->from.kind->name, semel__do_name(route->handler.kind));
    cli_say(cli, "  %s", promise->why.p);
    for (int i = 0; i < SEMEL_CHECKLIST_COUNT; i++)
        cli_say(cli, "  %-14s %s", semel__checklist_name((enum semel_checklist)i), promise->answers[i].p);
    cli_say(cli, "%s", "");
}

static void say_answers(const struct cli *cli, const struct semel_conf *conf, const struct online_answers *online)
{
    for (size_t i = 0; i < online->n; i++) {
        const struct online_answer *a = online->at[i];
        bool store = a->route == ONLINE_STORE;
        cli_say(cli, "%-8s %s%s: %s: %s", online_result_name(a->result), store ? "store" : "route ",
                store ? "" : conf->routes[a->route].name.p, a->question, a->text);
    }
}

int cli_conf_mistakes(const char *file, const struct semel_conf_mistakes *mistakes)
{
    struct semel_buf buf;
    size_t n = mistakes->n + mistakes->more;
    semel__buf_init(&buf, TEXT_MAX_BYTES);
    semel__conf_mistakes_print(mistakes, &buf);
    fflush(stdout);
    fwrite(semel__buf_str(&buf).p, 1, semel__buf_str(&buf).n, stderr);
    bool failed = buf.failed;
    semel__buf_done(&buf);
    if (failed)
        return cli_fail(CLI_FAILED, "out of memory");
    return cli_fail(CLI_FAILED, "%s: %zu mistake%s", file, n, n == 1 ? "" : "s");
}

/* ---- for programs -------------------------------------------------------------------------------- */

static void add_element(struct semel_buf *array, struct semel_object *object)
{
    struct semel_str text = semel__object_end(object);
    semel__buf_addz(array, array->n > 1 ? ",\n" : "");
    semel__buf_add(array, text.p, text.n);
    array->failed |= object->buf.failed;
    semel__object_done(object);
}

static void add_route(struct semel_buf *array, const struct semel_route *route)
{
    const struct semel_promise *promise = &route->promise;
    struct semel_object object, answers;
    semel__object_init(&answers);
    for (int i = 0; i < SEMEL_CHECKLIST_COUNT; i++)
        semel__object_text(&answers, semel__checklist_name((enum semel_checklist)i), promise->answers[i]);
    semel__object_init(&object);
    semel__object_text(&object, "route", route->name);
    semel__object_text(&object, "source", semel__str(route->from.kind->name));
    semel__object_text(&object, "handler", semel__str(semel__do_name(route->handler.kind)));
    semel__object_text(&object, "guarantee", semel__str(semel__guarantee_name(promise->guarantee)));
    semel__object_text(&object, "why", promise->why);
    semel__object_text(&object, "order", semel__str(semel__order_rests_name(promise->order)));
    semel__object_number(&object, "retention_us", route->policy.retention_us);
    semel__object_number(&object, "horizon_us", promise->horizon_us);
    semel__object_raw(&object, "settings", route->settings);
    semel__object_raw(&object, "checklist", semel__object_end(&answers));
    object.buf.failed |= answers.buf.failed;
    semel__object_done(&answers);
    add_element(array, &object);
}

static void add_mistake(struct semel_buf *array, const struct semel_conf_mistake *m)
{
    struct semel_object object;
    semel__object_init(&object);
    semel__object_number(&object, "line", m->line);
    semel__object_number(&object, "column", m->column);
    semel__object_text(&object, "path", m->path);
    semel__object_text(&object, "text", m->text);
    add_element(array, &object);
}

static void add_answers(struct semel_object *to, const struct semel_conf *conf, const struct online_answers *online)
{
    struct semel_buf array;
    semel__buf_init(&array, 64 * TEXT_MAX_BYTES);
    semel__buf_addz(&array, "[");
    for (size_t i = 0; i < online->n; i++) {
        const struct online_answer *a = online->at[i];
        struct semel_str route = {0};
        struct semel_object object;
        if (a->route != ONLINE_STORE)
            route = conf->routes[a->route].name;
        semel__object_init(&object);
        semel__object_text(&object, "route", route);
        semel__object_text(&object, "question", semel__str(a->question));
        semel__object_text(&object, "result", semel__str(online_result_name(a->result)));
        semel__object_text(&object, "text", semel__str(a->text));
        add_element(&array, &object);
    }
    semel__buf_addz(&array, "]");
    semel__object_raw(to, "online", semel__buf_str(&array));
    to->buf.failed |= array.failed;
    semel__buf_done(&array);
}

static int print_json(const char *file, const struct semel_conf *conf, const struct semel_conf_mistakes *mistakes,
                      const struct online_answers *online)
{
    bool ok = conf != NULL && (online == NULL || online->failures == 0);
    struct semel_buf routes, wrong;
    struct semel_object object;
    semel__buf_init(&routes, 16 * TEXT_MAX_BYTES);
    semel__buf_init(&wrong, TEXT_MAX_BYTES);
    semel__buf_addz(&routes, "[");
    semel__buf_addz(&wrong, "[");
    for (size_t i = 0; conf != NULL && i < conf->n_routes; i++)
        add_route(&routes, &conf->routes[i]);
    for (size_t i = 0; i < mistakes->n; i++)
        add_mistake(&wrong, &mistakes->at[i]);
    semel__buf_addz(&routes, "]");
    semel__buf_addz(&wrong, "]");
    semel__object_init(&object);
    semel__object_text(&object, "file", semel__str(file));
    semel__object_bool(&object, "ok", ok);
    semel__object_raw(&object, "routes", semel__buf_str(&routes));
    semel__object_raw(&object, "mistakes", semel__buf_str(&wrong));
    semel__object_number(&object, "not_shown", (int64_t)mistakes->more);
    if (online != NULL)
        add_answers(&object, conf, online);
    object.buf.failed |= routes.failed || wrong.failed;
    semel__buf_done(&routes);
    semel__buf_done(&wrong);
    int code = cli_object_print(&object);
    return code != CLI_OK || ok ? code : CLI_FAILED;
}

/* ---- the command --------------------------------------------------------------------------------- */

static int say(const struct cli *cli, const char *file, const struct semel_conf *conf,
               const struct online_answers *online)
{
    const char *many = conf->n_routes == 1 ? "" : "s";
    for (size_t i = 0; i < conf->n_routes; i++)
        say_route(cli, &conf->routes[i]);
    if (online == NULL) {
        cli_say(cli, "%s: %zu route%s, no mistakes", file, conf->n_routes, many);
        return CLI_OK;
    }
    say_answers(cli, conf, online);
    cli_say(cli, "%s: %zu route%s, no mistakes; %zu answers, %zu warning%s, %zu failed", file, conf->n_routes, many,
            online->n, online->warnings, online->warnings == 1 ? "" : "s", online->failures);
    return online->failures == 0 ? CLI_OK : CLI_FAILED;
}

static int tell(struct cli *cli, const char *file, const struct semel_conf *conf,
                const struct semel_conf_mistakes *mistakes, bool online)
{
    struct online_answers answers;
    online = online && conf != NULL; /* a file with a mistake asks nobody */
    if (online && !online_run(cli, conf, &answers))
        return cli_fail(CLI_FAILED, "out of memory");
    if (cli->json)
        return print_json(file, conf, mistakes, online ? &answers : NULL);
    if (conf == NULL)
        return cli_conf_mistakes(file, mistakes);
    return say(cli, file, conf, online ? &answers : NULL);
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *file = cli_operand(args, 0);
    struct semel_conf_mistakes *mistakes = semel__arena_alloc(&cli->arena, 1, sizeof(*mistakes));
    struct semel_conf *conf = NULL;
    struct semel_error err = {0};
    if (mistakes == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    semel__conf_mistakes_init(mistakes);
    semel_status status = semel__conf_load(file, &conf, mistakes, &err);
    int code;
    if (status == SEMEL_OK || mistakes->n > 0)
        code = tell(cli, file, conf, mistakes, cli_flag(args, "online"));
    else
        code = cli_fail(CLI_FAILED, "%s", err.text);
    semel__conf_free(conf);
    semel__conf_mistakes_done(mistakes);
    return code;
}

static const struct cli_option options[] = {
    {"online", 0, NULL, "also ask the store, the brokers and the servers that the settings name"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_check = {
    .name = "check",
    .summary = "find the mistakes in a file of settings, and say what its routes promise",
    .operands = "FILE",
    .operands_min = 1,
    .operands_max = 1,
    .options = options,
    .help =
        "Each mistake is shown with its place, the line and a caret. A file without any gets an answer for each\n"
        "route: its guarantee, what its order rests on, and the checklist: the key, whether others can read what is\n"
        "on the way, the store, whether the effect is in the same transaction, the retention against the horizon,\n"
        "calls to the outside and their keys.\n"
        "Environment variables and secret files that the settings name must be there; no secret is shown. FILE may\n"
        "be - for stdin.\n"
        "\n"
        "No server is asked, unless --online is given. Then there is a line for each answer, with ok, warning or\n"
        "failed: whether the store can be reached, its schema is current, what is committed lasts, the role may do\n"
        "what routes need, and statements can be prepared; whether topics and queues are there, and the broker\n"
        "keeps messages no longer than the settings say (if it does, keep.completed must cover that); whether\n"
        "servers of handlers accept connections (nothing is sent), and programs can be run. Nothing is changed,\n"
        "and no message is read. No question waits much longer than 5 seconds.\n"
        "Exit code 1: there are mistakes, the file cannot be read, or an answer is `failed`.\n"
        "\n"
        "Examples\n"
        "  semel check semel.yaml\n"
        "  semel check semel.yaml --online\n"
        "  semel check semel.yaml --json",
    .run = run,
};
