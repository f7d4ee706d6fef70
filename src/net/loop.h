/* SPDX-License-Identifier: MIT
 *
 * loop.h: what shares the server's event loop.
 *
 * A guest has handles of its own in the loop. While the server stops, it waits until no guest is busy; at its deadline
 * it tells them to give up; then, in every case, `close` is called once, after which a guest starts nothing and its
 * handles close. `flush` is called before the loop waits for the next events, so that what several callbacks have
 * queued goes out as one. All of it in the loop's thread, or while the loop does not run.
 */
#ifndef SEMEL_NET_LOOP_H
#define SEMEL_NET_LOOP_H

#include <uv.h>

#include "net/http.h"

union semel_stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct semel_guest {
    bool (*busy)(void *ctx);
    void (*give_up)(void *ctx);
    void (*close)(void *ctx);
    void (*flush)(void *ctx); /* or NULL */
    void *ctx;
    struct semel_guest *next;
};

uv_loop_t *semel__http_loop(struct semel_http *http);
void semel__http_join(struct semel_http *http, struct semel_guest *guest); /* before _run */
void semel__http_settled(struct semel_http *http);                         /* a guest is not busy any more */

#endif
