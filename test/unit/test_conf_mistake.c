/* SPDX-License-Identifier: MIT
 *
 * test_conf_mistake.c: how mistakes look: the typical ones letter by letter, with their lines and carets; what is
 * hidden of a line; and what one setting says of another.
 */
#include "unit/conf.h"

static const char *const env[] = {"TOKEN", "0123456789abcdefgh", "KEY", "s3cr3t", NULL};

/* ---- letter by letter ---------------------------------------------------------------------------- */

static const struct {
    const char *file, *said;
} golden[] = {
    {ROUTE_OF("    retry: {max: 0}\n"),
     "semel.yaml:6:18: routes.r.retry.max is 0; it must be a whole number, 1 to 1000\n"
     "    6 |     retry: {max: 0}\n"
     "      |                  ^\n"},
    {ROUTE_OF("    workres: 4\n"), "semel.yaml:6:5: routes.r has no setting \"workres\"; did you mean workers?\n"
                                   "    6 |     workres: 4\n"
                                   "      |     ^~~~~~~\n"},
    {ROUTE_OF("    workers: 4\n    batch: 5\n    workers: 2\n"),
     "semel.yaml:8:5: \"workers\" is given twice; it is in line 6 already\n"
     "    8 |     workers: 2\n"
     "      |     ^~~~~~~\n"},
    {"store: sqlite:x.db\nroutes:\n  r:\n    from:\n      kafka: k:9092\n    do: {sql: SELECT 1}\n",
     "semel.yaml:4:5: routes.r.from lacks topic: the topic, or several; it must be text, or a list of texts\n"
     "    4 |     from:\n"
     "      |     ^~~~\n"},
    {ROUTE_OF("    keep: {completed: 1w}\n"),
     "semel.yaml:6:23: routes.r.keep.completed is 1w; it must be a duration such as \"90s\", 1h to 36500d\n"
     "    6 |     keep: {completed: 1w}\n"
     "      |                       ^~\n"},
    {ROUTE_OF("    keep: {completed: 20d}\n"),
     "semel.yaml:6:23: routes.r.keep.completed is 20d, shorter than the horizon (broker 7d + outbox 1d + outage 3d + "
     "dead letters 14d + margin 5d): a duplicate could come back after its record was purged; 30d would do\n"
     "    6 |     keep: {completed: 20d}\n"
     "      |                       ^~~\n"},
    {ROUTE_OF("    order: json:order\n"), "semel.yaml:6:12: routes.r.order: \"json:order\": not a JSON pointer; it "
                                          "must start with / and write ~ as ~0 and / "
                                          "as ~1\n"
                                          "    6 |     order: json:order\n"
                                          "      |            ^~~~~~~~~~\n"},
    {ROUTE_OF("    do: {exec: [a]}\n"), "semel.yaml:6:5: \"do\" is given twice; it is in line 5 already\n"
                                        "    6 |     do: {exec: [a]}\n"
                                        "      |     ^~\n"},
    {ROUTE_OF("    retry:\n      - max: 4\n"), "semel.yaml:6:5: routes.r.retry is a list; it must be a mapping\n"
                                               "    6 |     retry:\n"
                                               "      |     ^~~~~\n"},
    {ROUTE_OF("  s: {from: {kafka: \"k:9092\", topic: t, group: r}, do: {sql: SELECT 1}}\n"),
     "semel.yaml:6:13: routes.s reads from the same queue as routes.r: each would get only a part of the messages; "
     "give "
     "it a group of its own\n"
     "    6 |   s: {from: {kafka: \"k:9092\", topic: t, group: r}, do: {sql: SELECT 1}}\n"
     "      |             ^\n"},
    {ROUTE_OF("admin: {listen: 127.0.0.1:80, token: ${TOKEN}}\n"),
     "semel.yaml:6:38: this is not YAML: inside { } and [ ] a value with ${...} must stand in quotes\n"
     "    6 | admin: {listen: 127.0.0.1:80, token: ${TOKEN}}\n"
     "      |                                      ^~\n"},
    {ROUTE_OF("    type: ${NO_SUCH}\n"),
     "semel.yaml:6:11: the environment has no variable NO_SUCH; set it, or write $${ for ${ itself\n"
     "    6 |     type: ${NO_SUCH}\n"
     "      |           ^~~~~~~~~~\n"},
    {ROUTE_OF("\tworkers: 4\n"), "semel.yaml:6:1: this is not YAML: tab character may not be used as indentation\n"
                                 "    6 |  workers: 4\n"
                                 "      | ^\n"},
    {ROUTE_OF("admin:\n  listen: 0.0.0.0:80\n"),
     "semel.yaml:7:11: admin.listen is 0.0.0.0:80, which others can reach; it must have tls, or be loopback or a unix "
     "socket; where a proxy terminates TLS, set plain: true\n"
     "    7 |   listen: 0.0.0.0:80\n"
     "      |           ^~~~~~~~~~\n"},
    {ROUTE_OF("    type: \"h\xc3\xa9\xc3\xa9:\xe2\x82\xac\"\n    batch: 0 # \xe2\x82\xac\n"),
     "semel.yaml:6:11: routes.r.type: \"h\xc3\xa9\xc3\xa9:\xe2\x82\xac\" is no rule; there are header:NAME, "
     "property:NAME, json:/POINTER, position, digest and stored\n"
     "    6 |     type: \"h\xc3\xa9\xc3\xa9:\xe2\x82\xac\"\n"
     "      |           ^~~~~~~\n"
     "semel.yaml:7:12: routes.r.batch is 0; it must be a whole number, 1 to 10000\n"
     "    7 |     batch: 0 # \xe2\x82\xac\n"
     "      |            ^\n"},
};

static void typical_mistakes_look_like_this(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(golden); i++) {
        struct reading reading = {.env = env};
        reading_text(&reading, golden[i].file);
        assert_int_equal(reading.status, SEMEL_INVALID);
        assert_string_equal(reading.text.p, golden[i].said);
        reading_done(&reading);
    }
}

static void all_mistakes_are_told_by_their_places(void **state)
{
    struct reading reading = {.env = env};
    (void)state;
    reading_text(&reading, "zz: 1\nstore: 5\nroutes:\n  r: {from: {kafka: k}, do: {sql: []}, batch: x}\n  s: 1\n");
    assert_int_equal(reading.mistakes.n, 6);
    for (size_t i = 1; i < reading.mistakes.n; i++)
        assert_true(reading.mistakes.at[i].line * 1000 + reading.mistakes.at[i].column >=
                    reading.mistakes.at[i - 1].line * 1000 + reading.mistakes.at[i - 1].column);
    assert_str(reading.mistakes.at[0].path, "zz");
    assert_str(reading.mistakes.at[4].path, "routes.r.batch");
    reading_done(&reading);
}

static void a_long_line_is_cut_around_the_caret(void **state)
{
    struct reading reading = {.env = env};
    char text[1000];
    (void)state;
    snprintf(text, sizeof(text), "%s    business_key: [%0200d, zz, %0200d]\n", ROUTE_OF(""), 0, 0);
    reading_text(&reading, text);
    assert_true(reading.mistakes.n >= 2);
    for (size_t i = 0; i < reading.mistakes.n; i++) {
        const struct semel_conf_mistake *m = &reading.mistakes.at[i];
        assert_true(m->shown.n <= 100);
        assert_true(m->caret >= 0 && (size_t)(m->caret + m->width) <= m->shown.n);
    }
    assert_memory_equal(reading.mistakes.at[1].shown.p + reading.mistakes.at[1].caret, "zz", 2);
    reading_done(&reading);
}

/* ---- what is hidden ------------------------------------------------------------------------------ */

static void nothing_that_may_be_a_secret_is_shown(void **state)
{
    static const char *const files[] = {
        "store: postgres://app:hunter2@db/shop\nroutes: 1\n",
        "store: postgres://app@db/shop?password=hunter2&sslmode=require\nroutes: 1\n",
        "store: postgres://app:pa/hunter2@db/shop\nroutes: 1\n",
        "store: postgres://app:12/hunter2@db/shop\nroutes: 1\n",
        "store: postgres://app:pa?hunter2@db/shop\nroutes: 1\n",
        "store: postgres://app:pa#hunter2@hunter2@db/shop\nroutes: 1\n",
        "store: \"postgres:host=h password = 'hunter2' user=u\"\nroutes: 1\n",
        /* B9 */
        "store: postgres://app@db/shop?passwrd=hunter2&sslmode=require\nroutes: 1\n",
        "store: \"postgres:host=h passwd = 'hunter2' user=u\"\nroutes: 1\n",
        "store: postgres://app@db/shop?PWD=hunter2\nroutes: 1\n",
        "store: postgres://app@db/shop?paswrd=hunter2\nroutes: 1\n",
        "store: postgres://app@db/shop?sslpassword=hunter2\nroutes: 1\n",
        "store: postgres://app@db/shop?oauth_client_secret=hunter2\nroutes: 1\n",
        "store: postgres:host=h password=a&hunter2 user=u\nroutes: 1\n",
        "store: postgres:host=h password=a,hunter2}'hunter2 user=u\nroutes: 1\n",
        "store: postgres:host=h password=a\\ hunter2 user=u\nroutes: 1\n",
        "store: \"postgres:host=h password='a\\\\'hunter2' user=u\"\nroutes: 1\n",
        "password: hunter2\n",
        "pasword: hunter2\n",
        "x: {y: [1, token: hunter2, z: 1}\n",
        "secret_key: 'hunter2\n",
        "token: \"hunter2\" x\n",
        "password: |\n  hunter2\n bad: [\n",
        "token:\n  hunter2: [\n",
        ROUTE_OF("    password: hunter2\n"),
        ROUTE_OF("  s:\n    from: {amqp: \"amqp://u:hunter2@h/\", queue: q, zzzzzz: 1}\n    do: {sql: SELECT 1}\n"),
        ROUTE_OF("  s:\n    from: {listen: \"localhost:1\", token: hunter2hunter2hunter2}\n    do: {sql: SELECT 1}\n"),
        ROUTE_OF("  s:\n    from: {listen: \"localhost:1\", token: '${TOKEN}', path: x}\n"
                 "    do: {http: \"https://h/\", headers: {Authorization: Bearer hunter2}, zzzz: 1}\n"),
        ROUTE_OF("  s:\n    from: {kafka: \"k:1\", topic: t}\n"
                 "    do: {http: \"https://h/\", headers: {Authorization: Bearer hunter2}}\n"),
        ROUTE_OF("  s:\n    from: {kafka: \"k:1\", topic: t, sasl: {mechanism: plain, user: u, password: >\n"
                 "      hunter2}}\n    do: {sql: SELECT 1}\n"),
    };
    (void)state;
    for (size_t i = 0; i < COUNT(files); i++) {
        struct reading reading = {.env = env};
        reading_text(&reading, files[i]);
        assert_int_equal(reading.status, SEMEL_INVALID);
        if (strstr(reading.text.p, "hunter2") != NULL)
            fail_msg("%s\n%s", files[i], reading.text.p);
        reading_done(&reading);
    }
}

/* However many there are on one line, and whichever of them is found last. */
static void many_secrets_on_a_line_are_all_hidden(void **state)
{
    (void)state;
    for (int n = 14; n < 20; n++) {
        struct reading reading = {.env = env};
        struct semel_buf text;
        semel__buf_init(&text, 10000);
        semel__buf_addz(&text, "zz: {a: [{token: hunter2}, {token: hunter2}], store: \"postgres:");
        for (int i = 0; i < n; i++)
            semel__buf_addz(&text, "password=hunter2 ");
        semel__buf_addz(&text, "\", password: hunter2}\n");
        reading_bytes(&reading, semel__buf_str(&text));
        assert_int_equal(reading.status, SEMEL_INVALID);
        if (strstr(reading.text.p, "hunter2") != NULL)
            fail_msg("%d: %s", n, reading.text.p);
        semel__buf_done(&text);
        reading_done(&reading);
    }
}

static void how_long_a_secret_is_cannot_be_seen(void **state)
{
    struct reading a = {.env = env}, b = {.env = env};
    (void)state;
    reading_text(&a, "store: postgres://app:a@db/shop\nroutes: {}\n");
    reading_text(&b, "store: postgres://app:aaaaaaaaaaaaaaaa@db/shop\nroutes: {}\n");
    assert_string_equal(a.text.p, b.text.p);
    reading_done(&a);
    reading_done(&b);
}

static void a_line_with_a_variable_is_shown_as_it_is(void **state)
{
    struct reading reading = {.env = env};
    (void)state;
    reading_text(&reading, ROUTE_OF("admin: {listen: \"localhost:1\", token: \"${TOKEN}\", zzzzz: 1}\n"));
    assert_non_null(strstr(reading.text.p, "| admin: {listen: \"localhost:1\", token: \"${TOKEN}\", zzzzz: 1}\n"));
    reading_done(&reading);
}

/* ---- what one setting says of another ------------------------------------------------------------ */

#define ONE(from, rest) "store: sqlite:x.db\nroutes:\n  r:\n    from: {" from "}\n" rest
#define KAFKA "kafka: \"k:9092\", topic: t"
#define LISTEN "listen: \"localhost:1\", token: \"${TOKEN}\""
#define SQL "    do: {sql: SELECT 1}\n"
#define PULL "    do: {pull: \"localhost:1\", token: \"${TOKEN}\""

#define PG "store: postgres://localhost/shop"
#define OUTBOX "outboxes:\n  o:\n    to: {" KAFKA "}\n"
#define MAPPED(key, table) "  " key ":\n    table: {name: '" table "', order: n, id: id}\n    to: {" KAFKA "}\n"
#define TWO_TABLES(a, b) PG "\noutboxes:\n" MAPPED("o", a) MAPPED("p", b)
#define SECOND_RELAY "outboxes.p is a second relay of the table of outboxes.o"

static const struct {
    const char *file, *why;
} between[] = {
    /* O5 O6 */
    {PG "\n" OUTBOX "  p:\n    to: {" KAFKA "}\n", "outboxes.p is a second relay of the store's outbox"},
    {TWO_TABLES("shop.event", "shop.event"), SECOND_RELAY},
    {TWO_TABLES("event", "event"), SECOND_RELAY},
    {TWO_TABLES("Shop.order", "\"Shop\".order"), SECOND_RELAY},
    {TWO_TABLES("\"Shop\".\"or\"\"der\"", "Shop.\"or\"\"der\""), SECOND_RELAY},
    {TWO_TABLES("event", "shop.event"), SECOND_RELAY}, /* it may be the same one */
    {TWO_TABLES("shop.event", "\"event\""), SECOND_RELAY},
    {PG "\n" OUTBOX "    timeout: 5s\n    lease: 9s\n", "outboxes.o.lease must be at least twice outboxes.o.timeout"},
    {PG "?semel_pooler=1\n" OUTBOX "    notify: true\n", "hears nothing behind a transaction pooler"},
    {"store: sqlite:x.db\n" OUTBOX "    notify: true\n", "outboxes.o.notify is for PostgreSQL"},
    {ONE(KAFKA, SQL "    version: json:/v\n"), "there is no `order` that says which key"},
    {ONE("amqp: \"amqp://h\", queue: q", SQL "    id: position\n"), "which only Kafka gives"},
    {ONE(KAFKA, "    do: {exec: [cat]}\n    values: [id]\n"), "r.values are for a statement"},
    {ONE(KAFKA ", offsets: store", "    do: {exec: [cat]}\n"), "it needs `do: {sql: ...}`"},
    {ONE(KAFKA, "    do: {sql: SELECT 1, set: true}\n"), "needs PostgreSQL, and the store is SQLite"},
    {ONE(KAFKA, SQL "    breaker: {first: 2m}\n"), "r.breaker.ceiling is below breaker.first"},
    {ONE(KAFKA, SQL "    retry: {first: 20m}\n"),
     "retry.ceiling is 10m; it must be at least retry.first, which is 20m"},
    {ONE(KAFKA, SQL "    retry: {ceiling: 1ms}\n"), "r.retry.ceiling is 1ms; it must be at least retry.first"},
    {ONE(KAFKA, SQL "    order: json:/o\n    keep: {payload: never}\n"), "unfinished or always where an order is kept"},
    {ONE(KAFKA, "    do: {exec: [cat]}\n    keep: {payload: never}\n"), "unless the effect is atomic"},
    {ONE("kafka: \"k\", topic: t", SQL), "from.kafka must be HOST:PORT"},
    {ONE("kafka: \"k:1, l:2\", topic: t", SQL), "from.kafka must be HOST:PORT"},
    {ONE("kafka: \"k:1,\", topic: t", SQL), "from.kafka must be HOST:PORT"},
    {ONE("kafka: \"k:1\", topic: ^t", SQL), "a topic has letters, digits"},
    {ONE(KAFKA ", tls: {cert_file: /bin/sh}", SQL), "needs key_file as well"},
    {ONE(KAFKA ", tls: {verify: false}", SQL), "Kafka's certificates are always checked"},
    {ONE(KAFKA ", properties: {enable.auto.commit: \"true\"}", SQL), "one of those that the driver lets through"},
    {ONE(KAFKA ", properties: {session.timeout.ms: abc}", SQL), "librdkafka does not take this value for"},
    {ONE(KAFKA ", properties: {session.timeout.ms: 0}", SQL), "value 0 is outside allowed range 1..3600000"},
    /* B9 */
    {ONE(KAFKA ", properties: {ssl.endpoint.identification.algorithm: none}", SQL), "those that the driver lets"},
    {ONE(KAFKA ", properties: {enable.ssl.certificate.verification: \"false\"}", SQL), "those that the driver lets"},
    {ONE(KAFKA ", properties: {ssl.cipher.suites: \"aNULL:@SECLEVEL=0\"}", SQL), "that shows no certificate"},
    /* A10 */
    {ONE(KAFKA, "    do: {http: \"https://h/\", transient: [404]}\n"), "statuses of 500 to 599 are listed there"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", transient: [5x3]}\n"), "statuses of 500 to 599 are listed there"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", transient: 600}\n"), "statuses of 500 to 599 are listed there"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", transient: [503], idempotent: true}\n"), "every 5xx is repeated"},
    /* B1 */
    {ONE(KAFKA, "    do: {http: \"https://h/\", reconcile: \"https://{id}/\"}\n"), "has {key} or {id} in its host"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", reconcile: \"https://h:{id}?a\"}\n"), "has {key} or {id} in its host"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", reconcile: \"https://h/p#{id}\"}\n"), "has a # in it"},
    /* B8 */
    {ONE(KAFKA, "    do: {http: \"http://h/\"}\n"),
     "r.do.http calls another host without TLS; use https:, or set do.plain: true"},
    {ONE(KAFKA, "    do: {http: \"http://127.0.0.1.example.com/\"}\n"), "r.do.http calls another host without TLS"},
    {ONE(KAFKA, "    do: {http: \"http://localhost@h/\"}\n"), "r.do.http calls another host without TLS"},
    {ONE(KAFKA, "    do: {http: \"http://[::2]:1/\"}\n"), "r.do.http calls another host without TLS"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", reconcile: \"http://h/{id}\"}\n"), "r.do.reconcile calls another host"},
    {"store: postgres://app@db/shop\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "add sslmode=verify-full to the URL, or set store_plain: true"},
    {"store: postgres://app@db/shop?sslmode=require\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "a fake server could take the password"},
    {"store: \"postgres:host=localhost,db dbname=shop\"\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "a fake server could take the password"},
    {"store: postgres://localhost/shop?hostaddr=10.0.0.1\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "a fake server could take the password"},
    {"store: postgres:service=shop\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "a fake server could take the password"},
    {ONE("amqp: \"amqp://h\", queue: q, tls: true", SQL), "the URL begins with amqp:; it must be amqps:"},
    {ONE("amqp: \"amqps://h\", queue: q, tls: false", SQL), "but the URL begins with amqps:"},
    {ONE("amqp: \"amqp://h\", queue: q, password: \"${KEY}\"", SQL), "a password without a user"},
    {ONE("listen: \"0.0.0.0:1\", token: \"${TOKEN}\"", SQL), "from.listen is \"0.0.0.0:1\", which others can reach"},
    {ONE(LISTEN ", path: x", SQL), "must begin with /"},
    {ONE(LISTEN ", path: /a?b", SQL), "must begin with /"},
    {ONE(LISTEN ", path: \"/{a}\"", SQL), "have no blank, brace, ?, # or % in it"},
    {ONE(LISTEN, PULL ", path: \"/a}\"}\n"), "have no blank, brace, ?, # or % in it"},
    {ONE(LISTEN ", path: /a/take", PULL ", path: /a}\n"), "the path of one is a call of the other"},
    {ONE(LISTEN ", path: /s/settle", SQL) "  s:\n    from: {" KAFKA "}\n" PULL "}\n",
     "routes.s.do.pull and routes.r.from.listen share an address, and the path of one is a call of the other"},
    {ONE(KAFKA, PULL "}\n") "  s:\n    from: {" LISTEN ", path: /r/renew}\n" SQL,
     "routes.s.from.listen and routes.r.do.pull share an address"},
    {ONE(KAFKA, PULL "}\n") "  s:\n    from: {amqp: \"amqp://h\", queue: q}\n" PULL ", path: /r}\n",
     "has the address and the path of routes.r.do.pull"},
    {ONE(LISTEN, PULL ", hosts: h}\n"), "but not its tls, plain and hosts"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", headers: {semel-consumer: x}}\n"), "Semel sets this header itself"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", headers: {Semel-Message-Id: x}}\n"), "Semel sets this header itself"},
    {ONE(KAFKA, "    do: {http: \"https://h/\", headers: {Semel-Attempt: \"1\"}}\n"), "Semel sets this header itself"},
    {ONE(LISTEN, "    do: {pull: \"127.0.0.1:1\", token: \"${TOKEN}\"}\n") "admin: {listen: \"localhost:1\"}\n",
     "admin.listen is the address of routes.r.from.listen"},
    {ONE(LISTEN, SQL) "  s:\n    from: {" LISTEN ", path: /r}\n" SQL, "has the address and the path of routes.r"},
    {ONE(LISTEN, SQL) "  s:\n    from: {" LISTEN ", hosts: h}\n" SQL, "but not its tls, plain and hosts"},
    {ONE("amqp: \"amqp://h\", queue: q", SQL) "  s:\n    from: {amqp: \"amqp://h\", queue: q}\n" SQL,
     "give it a queue of its own"},
    {"store: postgres://app@db/shop?password=hunter2\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "store has a password in it"},
    {"store: postgres://app:pa/hunter2@db/shop\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
     "store has a password in it"},
    {ONE(KAFKA, SQL "    lease: 0000000000000000000000000000000000000001dx\n"), "it must be a duration"},
    {ONE(KAFKA, SQL "    horizon: {broker: forever}\n"), "the route needs versions, a business key kept for ever"},
    {ONE(KAFKA, SQL "    horizon: {broker: 60d, margin: 1us}\n"), "keep.completed is 45d, shorter than the horizon"},
    {ONE(KAFKA, SQL "    horizon: {legal: 100d}\n"), "100d would do"},
};

/* P9 */
static void settings_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(between); i++) {
        struct reading reading = {.env = env};
        reading_text(&reading, between[i].file);
        if (reading.status != SEMEL_INVALID || reading.mistakes.n != 1 ||
            strstr(reading.text.p, between[i].why) == NULL)
            fail_msg("%s\nmust say only \"%s\", and says:\n%s", between[i].file, between[i].why, reading.text.p);
        reading_done(&reading);
    }
}

static void what_goes_together_is_taken(void **state)
{
    static const char *const files[] = {
        PG "\n" OUTBOX "    timeout: 5s\n    lease: 10s\n    notify: true\n",
        PG "?semel_pooler=1\n" OUTBOX,
        TWO_TABLES("shop.event", "depot.event"),
        TWO_TABLES("\"a.b\".c", "a.\"b.c\""),
        TWO_TABLES("shop.event", "shop.Event"),
        PG "\n" OUTBOX MAPPED("p", "event"),
        ONE(LISTEN, SQL) "  s:\n    from: {" LISTEN "}\n" SQL,
        ONE(LISTEN, PULL "}\n"),
        ONE(LISTEN ", path: /r/taken", PULL "}\n") "  s:\n    from: {" LISTEN ", path: /r}\n" SQL,
        ONE("listen: \"0.0.0.0:1\", token: \"${TOKEN}\", plain: true", SQL),
        ONE("listen: \"unix:/run/x\", token: \"${TOKEN}\"", SQL),
        ONE(KAFKA, SQL) "  s:\n    from: {" KAFKA "}\n" SQL,
        ONE(KAFKA ", properties: {session.timeout.ms: 6000}", SQL),
        /* A10, B8 */
        ONE(KAFKA, "    do: {http: \"https://h/\", transient: [503, \"500\"]}\n    unknown_max: 1\n"),
        ONE(KAFKA, "    do: {http: \"http://127.8.9.1:80/x\", reconcile: \"http://u@[::1]:80/{id}\"}\n"),
        ONE(KAFKA, "    do: {http: \"http://LOCALHOST/x\"}\n"),
        ONE(KAFKA, "    do: {http: \"http://h/\", reconcile: \"http://h/\", plain: true}\n"),
        "store: postgres://app@db/shop?sslmode=verify-full\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
        "store: postgres://app@db/shop?sslmode=verify-ca\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
        "store: postgres://app@db/shop\nstore_plain: true\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
        "store: postgres://localhost,127.0.0.1,[::1]/x\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
        "store: postgres:///shop?host=/run/pg\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
        "store: postgres://db/shop?hostaddr=127.0.0.1\nroutes: {r: {from: {" KAFKA "}, do: {sql: SELECT 1}}}\n",
        ONE("amqp: \"amqps://u@h/v\", queue: q, password: \"${KEY}\", user: u", SQL),
        ONE(KAFKA, SQL "    horizon: {broker: forever}\n    timed_ids: true\n"),
        ONE(KAFKA, SQL "    horizon: {broker: forever}\n    business_key: json:/b\n"),
        ONE(KAFKA, SQL "    horizon: {broker: forever}\n    order: json:/o\n    version: json:/v\n"),
        ONE(KAFKA, SQL "    horizon: {broker: 1h, outbox: 0s, outage: 0s, dead_letters: 0s, margin: 0s}\n"
                       "    keep: {completed: 1h}\n"),
    };
    (void)state;
    for (size_t i = 0; i < COUNT(files); i++) {
        struct reading reading = {.env = env};
        reading_ok(&reading, files[i]);
        reading_done(&reading);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typical_mistakes_look_like_this),
        cmocka_unit_test(all_mistakes_are_told_by_their_places),
        cmocka_unit_test(a_long_line_is_cut_around_the_caret),
        cmocka_unit_test(nothing_that_may_be_a_secret_is_shown),
        cmocka_unit_test(many_secrets_on_a_line_are_all_hidden),
        cmocka_unit_test(how_long_a_secret_is_cannot_be_seen),
        cmocka_unit_test(a_line_with_a_variable_is_shown_as_it_is),
        cmocka_unit_test(settings_that_contradict_each_other_are_refused),
        cmocka_unit_test(what_goes_together_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
