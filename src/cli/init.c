/* SPDX-License-Identifier: MIT
 *
 * init.c: `semel init`: a file of settings to start with, written from the table of the settings; with --json the table
 * itself, from which docs/settings.md is made.
 *
 * Invariants: a file that is there is never overwritten, not even by another process at the same moment.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "conf/conf.h"

/* ---- the table ----------------------------------------------------------------------------------- */

static void add_setting(void *ctx, const struct semel_conf_shown *shown)
{
    struct semel_buf *buf = ctx;
    struct semel_object object;
    semel__object_init(&object);
    semel__object_text(&object, "path", semel__str(shown->path));
    semel__object_text(&object, "choice", semel__str(shown->choice));
    semel__object_text(&object, "type", semel__str(shown->type));
    semel__object_text(&object, "default", semel__str(shown->other));
    semel__object_bool(&object, "computed", shown->computed);
    semel__object_bool(&object, "required", shown->required);
    semel__object_bool(&object, "secret", shown->secret);
    semel__object_bool(&object, "group", shown->group);
    semel__object_text(&object, "help", semel__str(shown->help));
    struct semel_str text = semel__object_end(&object);
    semel__buf_addz(buf, buf->n > 1 ? ",\n" : "");
    semel__buf_add(buf, text.p, text.n);
    buf->failed |= object.buf.failed;
    semel__object_done(&object);
}

/* The names that a setting of a source takes, where they are somebody's own: "kafka_properties". */
static bool add_names(struct semel_object *object, const struct semel_broker_kind *kind,
                      const struct semel_setting_spec *s)
{
    struct semel_buf buf;
    char name[64];
    const char *const *names;
    size_t n = s->names->all(&names);
    semel__buf_init(&buf, (size_t)1 << 16);
    semel__buf_addz(&buf, "[");
    for (size_t i = 0; i < n; i++)
        semel__buf_addf(&buf, "%s\"%s\"", i > 0 ? "," : "", names[i]);
    semel__buf_addz(&buf, "]");
    snprintf(name, sizeof(name), "%s_%s", kind->name, s->name);
    semel__object_raw(object, name, semel__buf_str(&buf));
    bool ok = !buf.failed;
    semel__buf_done(&buf);
    return ok;
}

static int print_table(void)
{
    struct semel_object object;
    struct semel_buf settings;
    semel__buf_init(&settings, (size_t)1 << 20);
    semel__buf_addz(&settings, "[");
    semel__conf_settings(add_setting, &settings);
    semel__buf_addz(&settings, "]");
    semel__object_init(&object);
    semel__object_raw(&object, "settings", semel__buf_str(&settings));
    object.buf.failed |= settings.failed;
    semel__buf_done(&settings);
    for (size_t i = 0; semel__broker_kinds[i] != NULL; i++)
        for (size_t k = 0; k < semel__broker_kinds[i]->from->n; k++) {
            const struct semel_setting_spec *s = &semel__broker_kinds[i]->from->settings[k];
            object.buf.failed |= s->names != NULL && !add_names(&object, semel__broker_kinds[i], s);
        }
    return cli_object_print(&object);
}

/* "kafka, amqp, sqs or listen" */
static void list_sources(char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; semel__broker_kinds[i] != NULL && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s",
                              i == 0                               ? ""
                              : semel__broker_kinds[i + 1] != NULL ? ", "
                                                                   : " or ",
                              semel__broker_kinds[i]->name);
}

/* ---- the file ------------------------------------------------------------------------------------ */

static bool write_all(int fd, struct semel_str text)
{
    while (text.n > 0) {
        ssize_t n = write(fd, text.p, text.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text.p += n;
        text.n -= (size_t)n;
    }
    return true;
}

static int write_file(const struct cli *cli, const char *path, struct semel_str text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST)
        return cli_fail(CLI_REFUSED, "%s is there already and is left as it is; name another file", path);
    if (fd < 0)
        return cli_fail(CLI_FAILED, "making %s: %s", path, cli_errno());
    bool ok = write_all(fd, text);
    int code = ok ? CLI_OK : cli_fail(CLI_FAILED, "writing %s: %s", path, cli_errno());
    if (close(fd) != 0 && ok)
        code = cli_fail(CLI_FAILED, "writing %s: %s", path, cli_errno());
    if (code != CLI_OK)
        unlink(path); /* half a file would be taken for a whole one */
    else
        cli_say(cli, "%s is written; semel check %s says what it promises", path, path);
    return code;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *given = cli_value(args, "from"), *from = given;
    const char *handler = cli_value(args, "do"), *out = cli_value(args, "out");
    if (from != NULL && strcmp(from, "rabbitmq") == 0) /* what people look for */
        from = "amqp";
    const struct semel_broker_kind *source = from != NULL ? semel__broker_kind(semel__str(from))
                                                          : semel__broker_kinds[0];
    enum semel_do_kind do_kind = SEMEL_DO_SQL;
    struct semel_buf buf;
    char sources[128];
    list_sources(sources, sizeof(sources));
    if (source == NULL)
        return cli_fail(CLI_USAGE, "--from is '%s'; it must be %s; RabbitMQ is amqp", given, sources);
    if (handler != NULL && !semel__do_parse(semel__str(handler), &do_kind))
        return cli_fail(CLI_USAGE, "--do is '%s'; it must be sql, http, exec or pull", handler);
    if (cli->json && (out != NULL || from != NULL || handler != NULL || cli_flag(args, "full")))
        return cli_fail(CLI_USAGE, "--json prints the table of all settings; it goes with no other option");
    if (cli->json)
        return print_table();
    semel__buf_init(&buf, (size_t)1 << 20);
    semel__conf_example(source, do_kind, cli_flag(args, "full"), &buf);
    int code = CLI_OK;
    if (buf.failed)
        code = cli_fail(CLI_FAILED, "out of memory");
    else if (out != NULL)
        code = write_file(cli, out, semel__buf_str(&buf));
    else
        fwrite(buf.p, 1, buf.n, stdout);
    semel__buf_done(&buf);
    return code;
}

static const struct cli_option options[] = {
    {"from", 0, "SOURCE", "where messages come from: kafka (default), amqp (or rabbitmq), sqs, listen or inbox"},
    {"do", 0, "HANDLER", "what is done with them: sql (default), http, exec or pull"},
    {"full", 0, NULL, "every setting with its meaning, not only those that must be set"},
    {"out", 'o', "FILE", "write to this file, which must not be there yet, instead of stdout"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_init = {
    .name = "init",
    .summary = "print a file of settings to start with",
    .options = options,
    .help = "The settings that matter for the chosen source and handler. With --full every one is there with its\n"
            "meaning, and what need not be set is a comment. With --json the table of all settings is printed.\n"
            "Exit code 4: the file of --out is there already.\n"
            "\n"
            "Examples\n"
            "  semel init --out semel.yaml\n"
            "  semel init --from amqp --do http",
    .run = run,
};
