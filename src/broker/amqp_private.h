/* SPDX-License-Identifier: MIT
 *
 * amqp_private.h: the inside of the AMQP driver:
 *   amqp.c       the source: settings, the window of unanswered deliveries, messages from frames, poll, answers
 *   amqp_link.c  a connection: connecting, TLS, sending without blocking, the meaning of errors; and the sink
 *
 * We avoid the parts of librabbitmq that may wait for ever: the driver assembles messages from frames, and sends a
 * frame only when the socket has room for it (AMQP_FRAME_PART).
 *
 * Invariants: a handle is used by one thread, and so are its two connections. `window.epoch` is 0 exactly when there is
 * no channel whose tags count.
 */
#ifndef SEMEL_BROKER_AMQP_PRIVATE_H
#define SEMEL_BROKER_AMQP_PRIVATE_H

#include <sys/time.h>

#ifdef SEMEL_AMQP_NEW_HEADERS
#include <rabbitmq-c/amqp.h>
#else
#include <amqp.h>
#endif

#include "base/error.h"
#include "base/str.h"
#include "base/wait.h"
#include "broker/amqp.h"

#define AMQP_CHANNEL ((amqp_channel_t)1)
#define AMQP_ASKING ((amqp_channel_t)2) /* the reader's questions about its queue */
#define AMQP_PREFETCH_MAX 65535
#define AMQP_BODY_MAX ((uint64_t)512 << 20) /* no server accepts more */
#define AMQP_FRAME_PART ((size_t)16 << 10)  /* a writable socket always has room for this */
#define AMQP_SHORT_MAX ((size_t)255)        /* of a short string */
#define AMQP_NUMBER_MAX ((UINT64_C(1) << 40) - 1)

/* ---- settings ----------------------------------------------------------------------------------------- */

struct amqp_conf {
    char *text; /* owned; all strings lie in it, and it is wiped when it is freed */
    size_t n_text;
    const char *host, *vhost, *user, *password, *queue, *exchange;
    const char *ca_file, *cert_file, *key_file, *key_password;
    int port;
    int prefetch, heartbeat_s, timeout_ms;
    enum semel_amqp_declare declare;
    bool single_active, tls, no_verify;
    bool external; /* log in by the certificate, without a user */
};

semel_status semel__amqp_configure(struct amqp_conf *conf, const struct semel_amqp_options *options,
                                   struct semel_error *err);
void semel__amqp_conf_done(struct amqp_conf *conf);

/* ---- the deliveries of a channel ---------------------------------------------------------------------- */

enum amqp_slot_state { AMQP_SLOT_GONE, AMQP_SLOT_OPEN, AMQP_SLOT_ACKED, AMQP_SLOT_HELD };

struct amqp_slot {
    uint64_t number; /* the delivery's, on its channel */
    int64_t due_us;  /* HELD: until then */
    enum amqp_slot_state state;
};

struct amqp_window {
    uint32_t epoch;       /* 0: no channel */
    struct amqp_slot *at; /* ascending; the first is not GONE */
    size_t first, n, cap;
    size_t live;      /* not GONE */
    size_t held;      /* HELD */
    int64_t due_us;   /* nothing held is due before; SEMEL_NONE: nothing is held */
    size_t low, high; /* ACKED slots lie in between */
    uint64_t cut;     /* everything from this number on is given back; 0: nothing */
};

void semel__amqp_window_begin(struct amqp_window *window); /* a new channel */
void semel__amqp_window_end(struct amqp_window *window);   /* the channel is gone: all tags are fenced */
void semel__amqp_window_done(struct amqp_window *window);
/* The number is above all earlier ones. false: no memory, and nothing has changed. */
bool semel__amqp_window_enter(struct amqp_window *window, uint64_t number, uint64_t *ret_tag);
bool semel__amqp_window_has(const struct amqp_window *window, uint64_t tag); /* false: fenced */
bool semel__amqp_window_ack(struct amqp_window *window, uint64_t tag);       /* false: fenced */
/* The next acknowledgement to send, for this number or for all up to it. false: there is none. */
bool semel__amqp_window_next_ack(struct amqp_window *window, uint64_t *ret_number, bool *ret_multiple);
bool semel__amqp_window_hold(struct amqp_window *window, uint64_t tag, int64_t due_us); /* false: fenced */
/* The next slot whose delay is over. false: there is none. */
bool semel__amqp_window_next_due(struct amqp_window *window, int64_t now_us, uint64_t *ret_number);
/* Gives back this one and all behind it. false: fenced. */
bool semel__amqp_window_cut(struct amqp_window *window, uint64_t tag);

/* ---- a message from its frames ------------------------------------------------------------------------ */

enum amqp_stage { AMQP_STAGE_NONE, AMQP_STAGE_HEADER, AMQP_STAGE_BODY, AMQP_STAGE_WHOLE };

struct amqp_build {
    enum amqp_stage stage;
    uint64_t number; /* of this message or the last, on its channel */
    bool redelivered;
    struct semel_arena arena; /* exchange and routing key, headers and properties */
    struct semel_str exchange, routing_key;
    struct semel_delivery d;
    char *body;
    size_t n_body, have, cap_body;
};

void semel__amqp_build_init(struct amqp_build *build);
void semel__amqp_build_done(struct amqp_build *build);
void semel__amqp_build_drop(struct amqp_build *build); /* forgets the message */
/* OK with stage WHOLE: the message is complete, except source, tag and lane. Not OK: the connection is unusable. */
semel_status semel__amqp_build_deliver(struct amqp_build *build, const amqp_basic_deliver_t *deliver,
                                       struct semel_error *err);
semel_status semel__amqp_build_content(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err);
/* Copies it; false: no room. */
bool semel__amqp_build_copy(const struct amqp_build *build, struct semel_arena *arena, struct semel_delivery *ret);

/* The message's headers as text, and its properties. false: no memory. */
bool semel__amqp_headers(const amqp_table_t *table, struct semel_arena *arena, struct semel_delivery *d);
bool semel__amqp_properties(const amqp_basic_properties_t *properties, struct semel_str routing_key,
                            struct semel_str exchange, struct semel_arena *arena, struct semel_delivery *d);
/* The count of a quorum queue plus one; else 2. */
int semel__amqp_delivery_count(const amqp_basic_properties_t *properties);

/* ---- a connection ------------------------------------------------------------------------------------- */

struct amqp_link {
    amqp_connection_state_t conn; /* NULL: not connected */
    int timeout_ms;               /* of one step */
    int64_t until_us;             /* no step runs past it; SEMEL_NONE: no limit */
    bool blocked;                 /* the server accepts no messages */
    int x509;                     /* why its certificate was refused, as OpenSSL's number; 0: it was not */
};

static inline struct semel_str amqp_str(amqp_bytes_t bytes)
{
    return (struct semel_str){bytes.len > 0 ? bytes.bytes : "", bytes.len};
}

/* Connects, logs in, opens AMQP_CHANNEL. Not OK (RETRY, INVALID): the link is closed. heartbeat_s 0: none. */
semel_status semel__amqp_link_open(struct amqp_link *link, const struct amqp_conf *conf, int heartbeat_s,
                                   int64_t until_us, struct semel_error *err);
/* in_peace: waits, but not for long, until the server has read everything, then closes. */
void semel__amqp_link_close(struct amqp_link *link, bool in_peace);
semel_status semel__amqp_open_channel(struct amqp_link *link, struct semel_error *err);
semel_status semel__amqp_close_channel(struct amqp_link *link, struct semel_error *err);
semel_status semel__amqp_send(struct amqp_link *link, amqp_channel_t channel, amqp_method_number_t id, void *method,
                              struct semel_error *err);
semel_status semel__amqp_send_frame(struct amqp_link *link, const amqp_frame_t *frame, struct semel_error *err);
/* OK with *ret_got: there is a frame. Otherwise the status says what happened to the connection. */
semel_status semel__amqp_receive(struct amqp_link *link, int64_t wait_us, amqp_frame_t *ret, bool *ret_got,
                                 struct semel_error *err);
/* The error of a failed RPC. `what` was tried. RETRY or INVALID. */
semel_status semel__amqp_fail_reply(amqp_rpc_reply_t reply, const char *what, struct semel_error *err);
/* A method that any connection may get: notes whether it is blocked. Not OK: the server closes the connection or its
 * channel. */
semel_status semel__amqp_link_method(struct amqp_link *link, const amqp_method_t *method, struct semel_error *err);

/* ---- the handle --------------------------------------------------------------------------------------- */

struct amqp {
    struct semel_broker base;
    struct amqp_conf conf;

    struct amqp_link reader;
    struct amqp_window window;
    struct amqp_build build;
    bool tried;               /* connecting was tried; no further try until reopen */
    int64_t again_us;         /* single_active: no new channel before; SEMEL_NONE: none is needed */
    int64_t beat_us;          /* while a message waits here: the next heartbeat */
    struct semel_error error; /* why it is not connected */

    bool asks;       /* somebody wants to know what the queue has */
    bool asking;     /* the channel of the questions is open */
    bool unanswered; /* a question is on its way */
    int64_t ask_us;  /* not before then */
    int64_t ready;   /* what the last answer said; -1: there is none */

    struct amqp_link sender;
    uint64_t published;         /* messages, on the sender's channel */
    char known[AMQP_SHORT_MAX]; /* an exchange that accepted a message */
    size_t n_known;
};

semel_status semel__amqp_publish(struct semel_broker *broker, struct semel_publish *items, size_t n, int timeout_ms,
                                 struct semel_error *err);

#endif
