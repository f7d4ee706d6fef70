/* SPDX-License-Identifier: MIT
 *
 * proxy.h: a TCP proxy in front of a PostgreSQL server, which cuts connections where it hurts most: around COMMIT.
 *
 * It is a process of its own on a free port of loopback, dies with the test, and knows just enough of the protocol to
 * find the request of a commit (as text, or as the execution of a statement that was prepared from it) and the answer
 * to one. Without an order it passes on every byte.
 */
#ifndef SEMEL_TEST_PG_PROXY_H
#define SEMEL_TEST_PG_PROXY_H

#include <sys/types.h>

enum pg_proxy_order {
    PG_PROXY_PASS,
    PG_PROXY_CUT_REQUEST, /* the server never hears of the commit: both connections are closed instead */
    PG_PROXY_CUT_ANSWER,  /* the server has committed; its answer is thrown away and both connections are closed */
    PG_PROXY_STALL        /* no byte moves in either direction, and nothing is closed; new connections hang too */
};

struct pg_proxy_shared;

struct pg_proxy {
    int port;
    pid_t pid;
    struct pg_proxy_shared *shared;
};

void pg_proxy_start(struct pg_proxy *proxy, int server_port);
void pg_proxy_done(struct pg_proxy *proxy);
/* From now on; a cut concerns the next commit after `skip` others, once, and then it passes on again. */
void pg_proxy_order(struct pg_proxy *proxy, enum pg_proxy_order order, int skip);
int pg_proxy_cuts(const struct pg_proxy *proxy);    /* how many there were */
int pg_proxy_commits(const struct pg_proxy *proxy); /* how many answers to commits were seen */

#endif
