/* SPDX-License-Identifier: MIT
 *
 * upstream.h: an HTTP server for tests that says whatever bytes it is told to, on loopback, a thread a connection; and
 * a caller `http` in front of it.
 *
 * It is written for the tests of the caller, so it shares no code with the server in src/net, and keeps no rules. Its
 * threads take what it is to do, and leave what they have seen, under its lock: tests that run beside it use the
 * functions below, not the members.
 */
#ifndef SEMEL_TEST_UPSTREAM_H
#define SEMEL_TEST_UPSTREAM_H

#include <openssl/ssl.h>
#include <pthread.h>

#include "base/error.h"
#include "handler/caller.h"
#include "unit/unit.h"

#define WAIT_MS 20000 /* for what must come; a test that waits longer fails */
#define UPSTREAM_CONNECTIONS 128
#define OK_EMPTY "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

struct upstream;

struct link {
    struct upstream *up;
    int fd;
    SSL *ssl;
    pthread_t thread;
    unsigned nth; /* of the request on this connection, from 1 */
};

/* Answers one request; false: close the connection. */
typedef bool (*upstream_script)(struct link *link);

/* What it has seen. */
struct upstream_seen {
    unsigned requests, heads; /* whole ones; and those of which the head came */
    unsigned most;            /* that one connection had */
    size_t n_links;           /* connections */
    size_t n_body;            /* bytes of the last request's body */
    char head[16384];         /* of the last request, NUL-terminated */
    char body[16384];         /* its beginning */
};

struct upstream {
    upstream_script script; /* NULL: `answer` is sent, and the connection kept */
    upstream_script early;  /* asked when only the head was read; false: close */
    const char *answer;
    SSL_CTX *tls;
    int idle_ms; /* after which a connection is closed; 0: late */
    int listener;
    unsigned port;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, released;
    unsigned requests, heads; /* whole ones; and those of which the head came */
    unsigned most;            /* that one connection had */
    char head[16384];         /* of the last request, NUL-terminated */
    char body[16384];         /* its beginning */
    size_t n_body;            /* all of it */
    struct link links[UPSTREAM_CONNECTIONS];
    size_t n_links;
    struct upstream_seen seen; /* of the test's thread */
};

void upstream_start(struct upstream *up);
void upstream_stop(struct upstream *up); /* waits for its threads */
void upstream_wait_requests(struct upstream *up, unsigned n);
void upstream_release(struct upstream *up);
void upstream_answer(struct upstream *up, const char *answer);
void upstream_play(struct upstream *up, upstream_script script);
void upstream_play_early(struct upstream *up, upstream_script early);
/* As it is now; valid until the next call. */
const struct upstream_seen *upstream_seen(struct upstream *up);

/* For scripts. false: the other side has gone, or we stop. */
bool link_send(struct link *link, const void *bytes, size_t n);
bool link_sendz(struct link *link, const char *text);
bool link_wait_release(struct link *link);
bool script_hold(struct link *link);  /* answers with `answer` when it is released */
bool script_close(struct link *link); /* closes without a word */

/* ---- a caller in front of it ---- */

struct rig {
    struct upstream up;
    struct semel_http_caller_settings settings;
    char url[128], reconcile[160];
    struct semel_caller *caller;
    struct semel__msg msg;
    struct semel_call_end end;
    struct semel_error err;
};

void rig_start(struct rig *rig); /* the upstream, and settings with its URL; not the caller */
void rig_stop(struct rig *rig);
void rig_call(struct rig *rig, const struct semel__msg *msg, bool ask); /* starts one */
struct semel_call_end *rig_wait(struct rig *rig);                       /* for the next end */
/* One call with the answer, from start to end; a caller is made if there is none. */
struct semel_call_end *rig_ask(struct rig *rig, bool ask);
struct semel_call_end *rig_answer(struct rig *rig, const char *answer);
void rig_drop(struct rig *rig); /* the caller, so that the next gets the settings anew */
/* A header line, whole, of the last request. */
bool rig_saw(const struct rig *rig, const char *line);

void assert_result(const struct semel_call_end *end, enum semel_result result);
void assert_not_sent(const struct semel_call_end *end, semel_status status, enum semel_class cls);

#endif
