/* SPDX-License-Identifier: MIT
 *
 * store.c: which store a command works on, and why it could not be opened.
 *
 * Invariants: a store is opened as it is: only who asks for it creates or migrates one. A URL is shown without the
 * password that may be in it.
 */
#include <stdlib.h>

#include "base/error.h"
#include "cli/frame.h"
#include "conf/conf.h"
#include "ops/ops.h"
#include "store/migrations.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

#define URL_SHOWN 1024

static const struct semel_store_ops *const drivers[] = {
    &semel__store_sqlite,
#ifdef SEMEL_WITH_POSTGRES
    &semel__store_postgres,
    &semel__store_postgresql,
#endif
    NULL,
};

static const struct cli_store_kind kinds[] = {
    {"sqlite", semel__sqlite_migrations, &semel__sqlite_migrations_n, false},
#ifdef SEMEL_WITH_POSTGRES
    {"postgres", semel__pg_migrations, &semel__pg_migrations_n, true},
#endif
};

/* ---- the URL ------------------------------------------------------------------------------------- */

/* SCHEME:SOMETHING, of a scheme that we know. */
static bool is_url(const char *url)
{
    const char *colon = strchr(url, ':');
    for (size_t i = 0; colon != NULL && colon[1] != '\0' && drivers[i] != NULL; i++)
        if (semel__str_eqz((struct semel_str){url, (size_t)(colon - url)}, drivers[i]->name))
            return true;
    return false;
}

const struct semel_store_ops *const *cli_store_drivers(void)
{
    return drivers;
}

const struct cli_store_kind *cli_store_kind(const char *name)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

bool cli_store_left_out(const char *kind_or_url)
{
    return strncmp(kind_or_url, "postgres", 8) == 0 && cli_store_kind("postgres") == NULL;
}

const struct cli_store_kind *cli_store_kind_of(const char *url)
{
    const char *name = strncmp(url, "postgres", 8) == 0 ? "postgres" : "sqlite";
    return cli_store_kind(name);
}

static void put(char out[URL_SHOWN], size_t *n, const char *p, size_t length)
{
    for (size_t i = 0; i < length && *n + 1 < URL_SHOWN; i++)
        out[(*n)++] = p[i];
    out[*n] = '\0';
}

const char *cli_store_shown(const char *url)
{
    static char out[URL_SHOWN];
    const struct semel_str text = semel__str(url);
    struct semel_str secret;
    size_t n = 0, from = 0;
    if (strncmp(url, "sqlite:", 7) == 0)
        return url; /* however long it is */
    while (semel__conf_secret(text, from, &secret)) {
        put(out, &n, url + from, (size_t)(secret.p - url) - from);
        put(out, &n, "***", 3);
        from = (size_t)(secret.p - url) + secret.n;
    }
    put(out, &n, url + from, text.n - from);
    return out;
}

const char *cli_store_url(const struct cli_args *args, int *ret_code)
{
    const char *url = cli_value(args, "store");
    bool from_env = url == NULL;
    if (from_env)
        url = getenv("SEMEL_STORE"); /* NOLINT(concurrency-mt-unsafe): there are no threads */
    if (url == NULL || url[0] == '\0') {
        *ret_code = cli_fail(CLI_USAGE, "no store is given; say --store sqlite:FILE or "
                                        "--store postgres://USER@HOST/DATABASE, or set SEMEL_STORE");
        return NULL;
    }
    if (cli_store_left_out(url)) {
        *ret_code = cli_fail(CLI_USAGE, "%s: this semel was built without PostgreSQL", cli_store_shown(url));
        return NULL;
    }
    if (!is_url(url)) {
        *ret_code = cli_fail(CLI_USAGE,
                             "%s is '%s'; a store looks like sqlite:FILE or postgres://USER@HOST:5432/DATABASE",
                             from_env ? "SEMEL_STORE" : "--store", cli_store_shown(url));
        return NULL;
    }
    return url;
}

/* ---- opening ------------------------------------------------------------------------------------- */

int cli_store_fail(const char *url, semel_status status, const struct semel_error *err)
{
    (void)status;
    return cli_fail(CLI_STORE, "%s: %s", cli_store_shown(url), err->text);
}

int cli_store_refused(const struct cli_args *args, const char *url, semel_status status, const struct semel_error *err)
{
    const char *migrate = cli_again(args->cli, "migrate", cli_value(args, "store"));
    const char *shown = cli_store_shown(url);
    switch (err->code) {
    case SEMEL_STORE_NO_DATABASE:
        return cli_fail(CLI_STORE, "%s: %s; to make one: %s", shown, err->text, migrate);
    case SEMEL_STORE_NO_SCHEMA:
        return cli_fail(CLI_STORE, "%s: no Semel tables here; to make them: %s", shown, migrate);
    case SEMEL_STORE_OLD_SCHEMA:
        return cli_fail(CLI_STORE, "%s: %s: %s", shown, err->text, migrate);
    default:
        return cli_store_fail(url, status, err);
    }
}

semel_status cli_store_judge(const char *url, struct semel_error *err)
{
#ifdef SEMEL_WITH_POSTGRES
    if (strncmp(url, "postgres", 8) == 0 && semel__pg_exposed(url, true))
        return semel__fail(
            err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
            "the store is on another host, and its certificate would not be checked: a fake server could "
            "take the password; add sslmode=verify-full to the URL, or the sslmode that is meant, such as "
            "sslmode=require or sslmode=disable");
#else
    (void)url, (void)err;
#endif
    return SEMEL_OK;
}

semel_status cli_store_try(const char *url, bool create_and_migrate, struct semel_store **ret, struct semel_error *err)
{
    struct semel_store_options options = {.create = create_and_migrate, .migrate = create_and_migrate};
    semel_status status = cli_store_judge(url, err);
    return status == SEMEL_OK ? semel_store_open(ret, drivers, url, &options, err) : status;
}

struct semel_store *cli_store_open(const struct cli_args *args, bool create_and_migrate, int *ret_code)
{
    struct semel_store *store = NULL;
    struct semel_error err = {0};
    const char *url = cli_store_url(args, ret_code);
    if (url == NULL)
        return NULL;
    semel_status status = cli_store_try(url, create_and_migrate, &store, &err);
    if (status == SEMEL_OK)
        return store;
    *ret_code = cli_store_refused(args, url, status, &err);
    return NULL;
}

int cli_ops_open(struct cli *cli, const struct cli_args *args, bool changes, struct semel_ops *ret)
{
    struct semel_str who = SEMEL_STR("nobody");
    struct semel_error err = {0};
    int code = changes ? cli_who(cli, &who) : CLI_OK;
    struct semel_store *store = code == CLI_OK ? cli_store_open(args, false, &code) : NULL;
    if (store == NULL)
        return code;
    if (semel__ops_init(ret, store, &cli->arena, who, &err) != SEMEL_OK) {
        semel_store_close(store);
        return cli_fail(CLI_FAILED, "%s", err.text);
    }
    if (cli_value(args, "store") != NULL)
        ret->store_option = cli_store_shown(cli_value(args, "store"));
    return CLI_OK;
}

void cli_ops_close(struct semel_ops *ops)
{
    semel__ops_done(ops);
    semel_store_close(ops->store);
}

void cli_store_about(struct semel_store *store, char *out, size_t size)
{
#ifdef SEMEL_WITH_POSTGRES
    if (semel__pg_is(store)) {
        semel__pg_about(store, out, size);
        return;
    }
#endif
    (void)store;
    semel__sqlite_about(semel__sqlite_version(), out, size);
}

int64_t cli_store_wal_bytes(struct semel_store *store)
{
    return store->ops == &semel__store_sqlite ? semel__sqlite_wal_bytes(store) : SEMEL_NONE;
}
