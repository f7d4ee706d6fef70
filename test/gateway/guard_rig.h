/* SPDX-License-Identifier: MIT
 *
 * guard_rig.h: the scene of the tests of guarded requests: a gateway with its keeper, between clients and an upstream
 * that send whatever bytes they are told to. One gateway at a time.
 */
#ifndef SEMEL_TEST_GATEWAY_GUARD_RIG_H
#define SEMEL_TEST_GATEWAY_GUARD_RIG_H

#include <poll.h>
#include <stdatomic.h>

#include "gateway/gateway.h"
#include "gateway/keeper.h"
#include "handler/upstream.h"
#include "support/world.h"
#include "unit/httpd.h"

#define LARGE 900000
#define HOST "Host: shop.example\r\n"
#define MADE "HTTP/1.1 201 Created\r\nContent-Length: 2\r\nX-Made: 1\r\n\r\nok"

/* Polls the condition; fails after WAIT_S. */
#define WAIT_FOR(condition)                             \
    for (unsigned rounds = 0; !(condition); rounds++) { \
        assert_true(rounds < WAIT_S * 200);             \
        poll(NULL, 0, 5);                               \
    }

extern const char *table; /* of the keys */
extern struct world world;
extern struct upstream up;
extern struct semel_gateway_settings settings;
extern struct semel_gateway_rule rules[4];
extern struct semel_keeper_settings keeping;
extern struct semel_keeper *keeper;
extern struct semel_http *http;
extern struct semel_gateway *gateway;
extern struct httpd server; /* only its port is used, by the client of httpd.h */
extern char url[64], reconcile[96];

/* While it is set the threads of the keeper stand still: it does nothing that it has not begun. */
extern atomic_bool lanes_stand;

void open_gateway(void);
void close_gateway(uint64_t deadline_ms);
int set_up(void **state);
int set_up_open(void **state);
int tear_down(void **state);
const char *request(const char *method, const char *path, const char *key, const char *more, const char *body);
struct reply post(const char *path, const char *key, const char *body);
int status_of(const char *text);
bool is_type(const struct reply *reply, const char *word);
bool replayed(const struct reply *reply);
int64_t keys(const char *where);
unsigned calls(void);

#define assert_refused(text, code, word)                                      \
    do {                                                                      \
        struct reply reply_ = client_ask(&server, text);                      \
        if (reply_.status != (code) || !is_type(&reply_, word))               \
            fail_msg("line %d: %d %s", __LINE__, reply_.status, reply_.body); \
        reply_done(&reply_);                                                  \
    } while (0)

/* A test with an open gateway, or one that opens it by itself. */
#define OPEN(name) cmocka_unit_test_setup_teardown(name, set_up_open, tear_down)
#define ALONE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* When the upstream is released: an answer of LARGE bytes. */
bool answer_large(struct link *link, const char *status);
/* Chooses the store by the argument of the program. False: it cannot be had. */
bool choose_store(int argc, char **argv, bool *ret_sqlite);

#endif
