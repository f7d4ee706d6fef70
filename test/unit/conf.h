/* SPDX-License-Identifier: MIT
 *
 * conf.h: reading settings in a test: a text, an environment of its own, and what came of it.
 */
#ifndef SEMEL_TEST_CONF_H
#define SEMEL_TEST_CONF_H

#include <stdlib.h>

#include "conf/conf.h"
#include "unit/unit.h"

/* NAME, VALUE, NAME, VALUE ... NULL */
struct reading {
    const char *const *env;
    const char *folder;
    struct semel_conf *conf; /* NULL: there are mistakes */
    struct semel_conf_mistakes mistakes;
    struct semel_error err;
    semel_status status;
    struct semel_buf text; /* the mistakes as they are printed */
};

static inline const char *reading_env(void *ctx, const char *name)
{
    const struct reading *reading = ctx;
    for (size_t i = 0; reading->env != NULL && reading->env[i] != NULL; i += 2)
        if (strcmp(reading->env[i], name) == 0)
            return reading->env[i + 1];
    return NULL;
}

static inline void reading_bytes(struct reading *reading, struct semel_str text)
{
    const struct semel_conf_input input = {
        .name = "semel.yaml", .folder = reading->folder, .text = text, .env = reading_env, .env_ctx = reading};
    semel__conf_mistakes_init(&reading->mistakes);
    reading->conf = NULL;
    reading->status = semel__conf_read(&input, &reading->conf, &reading->mistakes, &reading->err);
    semel__buf_init(&reading->text, 1 << 20);
    semel__conf_mistakes_print(&reading->mistakes, &reading->text);
    semel__buf_add(&reading->text, "", 1);
}

static inline void reading_text(struct reading *reading, const char *text)
{
    reading_bytes(reading, semel__str(text));
}

static inline void reading_done(struct reading *reading)
{
    semel__conf_free(reading->conf);
    semel__conf_mistakes_done(&reading->mistakes);
    semel__buf_done(&reading->text);
}

/* Reads without a mistake. */
static inline struct semel_conf *reading_ok(struct reading *reading, const char *text)
{
    reading_text(reading, text);
    if (reading->status != SEMEL_OK)
        fail_msg("%s\n%s", text, reading->text.p);
    return reading->conf;
}

/* A route `r` with what is given, from Kafka into SQLite. */
#define ROUTE_OF(more)                    \
    "store: sqlite:x.db\nroutes:\n  r:\n" \
    "    from: {kafka: \"k:9092\", topic: t}\n    do: {sql: SELECT 1}\n" more

#endif
