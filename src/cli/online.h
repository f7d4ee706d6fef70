/* SPDX-License-Identifier: MIT
 *
 * online.h: `semel check --online`: what the database, the brokers and the servers say of a file of settings.
 *
 *   check_online.c     who asks, how long, and what came of it
 *   check_store.c      the store, and the statements that run in it
 *   check_source.c     the brokers
 *   check_retention.c  what they keep, against the horizon (I18)
 *   check_reach.c      what handlers call
 *
 * Each group of questions is asked by a process of its own, which tells its answers one by one and is killed when it
 * says nothing for too long: whatever a resolver or a client library does, the command ends.
 *
 * Invariants: nothing is changed (but that PostgreSQL's timeline is noted, as always), no message is read, no request
 * reaches a handler. No answer has a secret in it.
 */
#ifndef SEMEL_CLI_ONLINE_H
#define SEMEL_CLI_ONLINE_H

#include "cli/cli.h"
#include "conf/conf.h"

#define ONLINE_ASK_MS 5000 /* for each question */
#define ONLINE_STORE SIZE_MAX

enum online_result { ONLINE_OK, ONLINE_WARNING, ONLINE_FAILED, ONLINE_ASKING };

/* An answer, or (ASKING) the question that is asked now. It fits into a pipe in one piece. */
struct online_answer {
    enum online_result result;
    size_t route; /* its place in the file; ONLINE_STORE: the store */
    char question[96];
    char text[900];
};

/* ---- inside the process that asks ---- */

struct online_asker {
    const struct semel_conf *conf;
    size_t route; /* that is asked for; ONLINE_STORE */
    int fd;
};

void online_ask(const struct online_asker *asker, const char *question);
__attribute__((format(printf, 4, 5))) void online_tell(const struct online_asker *asker, enum online_result result,
                                                       const char *question, const char *fmt, ...);
static inline const struct semel_route *online_route(const struct online_asker *asker)
{
    return &asker->conf->routes[asker->route];
}

void online_store(struct online_asker *asker);   /* for all routes */
void online_source(struct online_asker *asker);  /* of asker->route */
void online_handler(struct online_asker *asker); /* the same */

/* A broker keeps so long; for ever, and why. */
void online_retention(const struct online_asker *asker, const char *question, int64_t kept_us);
void online_forever(const struct online_asker *asker, const char *question, const char *because);
/* It could not be asked. */
void online_unreached(const struct online_asker *asker, const char *question, semel_status status,
                      const struct semel_error *err);

/* ---- for the command ---- */

struct online_answers {
    struct online_answer **at; /* the store's first, then by route */
    size_t n, warnings, failures;
};

/* In the arena. false: no memory. */
bool online_run(struct cli *cli, const struct semel_conf *conf, struct online_answers *ret);
const char *online_result_name(enum online_result result);

#endif
