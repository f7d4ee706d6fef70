/* SPDX-License-Identifier: MIT
 *
 * guard_rig.c: see guard_rig.h.
 */
#include "gateway/guard_rig.h"

#include "base/error.h"
#include "store/sqlite_store.h"
#ifdef SEMEL_WITH_POSTGRES
#include "store/pg_store.h"
#endif

static const struct semel_store_ops *const stores[] = {
    &semel__store_sqlite,
#ifdef SEMEL_WITH_POSTGRES
    &semel__store_postgres,
#endif
    NULL,
};
const char *table;
struct world world;
struct upstream up;
struct semel_gateway_settings settings;
struct semel_gateway_rule rules[4];
struct semel_keeper_settings keeping;
struct semel_keeper *keeper;
struct semel_http *http;
struct semel_gateway *gateway;
struct httpd server;
char url[64], reconcile[96];
atomic_bool lanes_stand;
static pthread_t thread, lanes[SEMEL_KEEPER_LANES_MAX];

static void *run(void *arg)
{
    struct semel_error err;
    return semel__http_run(http, &err) == SEMEL_OK ? NULL : arg;
}

static void *keep(void *arg)
{
    do
        while (atomic_load(&lanes_stand))
            poll(NULL, 0, 1);
    while (semel__keeper_step(keeper, (size_t)(uintptr_t)arg, 100));
    return NULL;
}

void open_gateway(void)
{
    struct semel_error err;
    if (semel__keeper_new(&keeper, &keeping, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < semel__keeper_lanes(keeper); i++) {
        if (semel__keeper_open(keeper, i, &err) != SEMEL_OK)
            fail_msg("%s", err.text);
        assert_int_equal(pthread_create(&lanes[i], NULL, keep, (void *)i), 0);
    }
    settings.keeper = keeper;
    assert_int_equal(semel__http_new(&http, NULL, &err), SEMEL_OK);
    if (semel__gateway_open(&gateway, http, &settings, &err) != SEMEL_OK)
        fail_msg("%s", err.text);
    server.port = semel__gateway_port(gateway);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
}

void close_gateway(uint64_t deadline_ms)
{
    atomic_store(&lanes_stand, false);
    semel__http_stop(http, deadline_ms);
    pthread_join(thread, NULL);
    semel__http_free(http);
    semel__keeper_stop(keeper, 5000);
    for (size_t i = 0; i < semel__keeper_lanes(keeper); i++)
        pthread_join(lanes[i], NULL);
    semel__gateway_close(gateway);
    semel__keeper_free(keeper);
    http = NULL;
}

/* Rules that a test adds go before the one that lets anybody have a key. */
int set_up(void **state)
{
    (void)state;
    static unsigned n;
    static char owner[32];
    world = (struct world){.driver = world_driver};
    world.driver->make(&world, true);
    up = (struct upstream){.answer = MADE};
    upstream_start(&up);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", up.port);
    snprintf(reconcile, sizeof reconcile, "http://127.0.0.1:%u/by-key/{key}", up.port);
    semel__gateway_settings_init(&settings);
    semel__gateway_rule_init(&rules[0]);
    rules[0].match = "* /{rest*}";
    rules[0].anonymous = true;
    settings.rules = rules;
    settings.n_rules = 1;
    settings.listen = "127.0.0.1:0";
    settings.upstream.url = url;
    semel__keeper_settings_init(&keeping);
    snprintf(owner, sizeof owner, "test-%u", ++n);
    keeping.drivers = stores;
    keeping.url = world.url;
    keeping.options.create = keeping.options.migrate = true;
    keeping.owner = owner;
    return 0;
}

int set_up_open(void **state)
{
    set_up(state);
    open_gateway();
    return 0;
}

int tear_down(void **state)
{
    (void)state;
    if (http != NULL)
        close_gateway(0);
    upstream_stop(&up);
    world.driver->teardown(&world);
    return 0;
}

/* The text of a request; `more` are header lines. */
const char *request(const char *method, const char *path, const char *key, const char *more, const char *body)
{
    static _Thread_local char text[8192];
    char line[512] = "";
    if (key != NULL)
        snprintf(line, sizeof line, "Idempotency-Key: %s\r\n", key);
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\n" HOST "%s%sContent-Length: %zu\r\n\r\n%s", method, path, line, more,
             strlen(body), body);
    return text;
}

struct reply post(const char *path, const char *key, const char *body)
{
    return client_ask(&server, request("POST", path, key, "", body));
}

/* One request, of which the status alone counts. */
int status_of(const char *text)
{
    struct reply reply = client_ask(&server, text);
    int status = reply.status;
    reply_done(&reply);
    return status;
}

bool is_type(const struct reply *reply, const char *word)
{
    char type[96];
    snprintf(type, sizeof type, "\"type\":\"urn:semel:idempotency:%s\"", word);
    return reply_has(reply, "Content-Type: application/problem+json") && strstr(reply->body, type) != NULL;
}

bool replayed(const struct reply *reply)
{
    return reply_has(reply, "Idempotent-Replayed: true");
}

int64_t keys(const char *where)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s WHERE %s", table, where);
    return world.driver->ask(&world, sql);
}

unsigned calls(void)
{
    return upstream_seen(&up)->requests;
}

bool answer_large(struct link *link, const char *status)
{
    static char bytes[LARGE], head[80];
    memset(bytes, 'a', sizeof bytes);
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n", status, LARGE);
    return link_wait_release(link) && link_sendz(link, head) && link_send(link, bytes, sizeof bytes);
}

bool choose_store(int argc, char **argv, bool *ret_sqlite)
{
    *ret_sqlite = argc < 2 || strcmp(argv[1], "sqlite") == 0;
    table = *ret_sqlite ? "semel_idempotency" : "semel.idempotency";
    world_driver = world_driver_named(argc > 1 ? argv[1] : "sqlite");
    return world_driver != NULL;
}
