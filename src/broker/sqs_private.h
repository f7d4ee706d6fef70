/* SPDX-License-Identifier: MIT
 *
 * sqs_private.h: the inside of the SQS driver:
 *   sqs.c       the options, held messages, receiving and housekeeping, poll, answers, publish
 *   sqs_http.c  one signed request by curl, the meaning of refusals, SQS's answers, which are hostile JSON, as structs
 *
 * All requests of a handle share one curl multi, which the caller's thread drives; there is no other thread and no
 * hidden request. A request is "AWS JSON 1.0": POST to the endpoint's root, the action in a header, JSON in and out.
 *
 * Invariants: only its tag names a slot of `held`, so a late answer finds no slot, or the same message; the number of
 * slots and the size of answers are bounded.
 */
#ifndef SEMEL_BROKER_SQS_PRIVATE_H
#define SEMEL_BROKER_SQS_PRIVATE_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "broker/sqs.h"
#include "net/curl.h"

#define SQS_BATCH 10
#define SQS_RECEIVES 4
#define SQS_CHORES 4
#define SQS_CALLS (SQS_RECEIVES + SQS_CHORES)
#define SQS_SENDS 8        /* requests of a publish at a time */
#define SQS_HEADERS_MAX 64 /* SQS itself allows 10 */
#define SQS_IN_FLIGHT_MAX ((size_t)100000)
#define SQS_SECOND_US INT64_C(1000000)
#define SQS_LONGEST_S 43200 /* how long a message may be invisible, from when it was received */
#define SQS_ANSWER_MAX ((size_t)8 << 20)
#define SQS_URL_MAX 1024

/* ---- answers ------------------------------------------------------------------------------------------ */

/* All texts are in the answer's document. */
struct sqs_message {
    struct semel_str id, handle, body, group, deduplication, sequence, sent;
    struct semel_pair headers[SQS_HEADERS_MAX];
    size_t n_headers;
    int delivery;
    bool damaged; /* the body does not match its MD5 */
    uint64_t tag; /* of its slot; 0: none */
};

struct sqs_batch {
    struct semel_json *json;
    struct sqs_message messages[SQS_BATCH];
    size_t n, at;
    struct sqs_batch *next;
};

enum sqs_outcome {
    SQS_UNSAID,
    SQS_DONE,
    SQS_AGAIN,  /* a failure of SQS itself */
    SQS_GONE,   /* the receipt is not valid, or no longer */
    SQS_REFUSED /* the request was wrong */
};

/* One for each entry of a batch. */
struct sqs_verdicts {
    enum sqs_outcome at[SQS_BATCH];
    char code[64]; /* of the last REFUSED */
    char md5[SQS_BATCH][33];
};

/* INVALID: not an answer of this kind. RETRY: no memory. */
semel_status semel__sqs_read_messages(struct semel_str text, struct sqs_batch **ret, struct semel_error *err);
void semel__sqs_batch_free(struct sqs_batch *batch);
semel_status semel__sqs_read_verdicts(struct semel_str text, size_t n, struct sqs_verdicts *verdicts,
                                      struct semel_error *err);
semel_status semel__sqs_read_facts(struct semel_str text, struct semel_sqs_facts *ret, struct semel_error *err);
/* The code ("QueueDoesNotExist") and the message of a refusal; "" where there is none. */
void semel__sqs_read_error(struct semel_str text, char *code, size_t n_code, char *message, size_t n_message);

/* ---- held messages ------------------------------------------------------------------------------------ */

enum sqs_state {
    SQS_FREE,
    SQS_WAITING, /* received, not delivered yet */
    SQS_OUT,     /* delivered */
    SQS_ACKED,   /* to be deleted */
    SQS_BACK     /* to be made visible */
};

struct sqs_slot {
    enum sqs_state state;
    uint64_t tag;
    char *text; /* owned: the four below point into it */
    struct semel_str id, handle, group, sequence;
    bool busy; /* a request for it is running */
    int delay_s;
    int tries;
    int64_t received_us;
    int64_t until_us; /* invisible to others until then, as far as we know */
    int64_t next_us;  /* when the next request for it is due */
};

struct sqs_held {
    struct sqs_slot *at;
    size_t n, cap, hint;
    bool fifo;
    int visibility_s;
};

enum sqs_duty { SQS_DELETE, SQS_CHANGE };

struct sqs_entry {
    uint64_t tag;
    int seconds; /* of SQS_CHANGE */
    bool back;   /* given back, not extended */
};

bool semel__sqs_held_init(struct sqs_held *held, size_t cap, int visibility_s, bool fifo);
void semel__sqs_held_done(struct sqs_held *held);
void semel__sqs_held_settle(struct sqs_held *held); /* keeps only messages that wait to be delivered */
/* NULL: fenced, or never ours. */
struct sqs_slot *semel__sqs_held_find(struct sqs_held *held, uint64_t tag);
/* Takes a slot for a received message, and fences older slots of it. 0: no memory, or no room. */
uint64_t semel__sqs_held_enter(struct sqs_held *held, const struct sqs_message *message, int64_t now_us);
bool semel__sqs_held_ack(struct sqs_held *held, uint64_t tag, int64_t now_us);
/* Gives back this one and all behind it in its group. false: fenced. */
bool semel__sqs_held_back(struct sqs_held *held, uint64_t tag, int delay_s, int64_t now_us);
/* Up to SQS_BATCH entries whose request is due; their slots are busy until `ended`. Drops expired ones. */
size_t semel__sqs_held_due(struct sqs_held *held, enum sqs_duty duty, int64_t now_us,
                           struct sqs_entry entries[SQS_BATCH]);
void semel__sqs_held_ended(struct sqs_held *held, enum sqs_duty duty, const struct sqs_entry *entry,
                           enum sqs_outcome outcome, int64_t sent_us, int64_t now_us);
/* The earliest time at which something is due; INT64_MAX: never. */
int64_t semel__sqs_held_next(const struct sqs_held *held);

/* ---- requests ----------------------------------------------------------------------------------------- */

struct sqs_conf {
    char url[SQS_URL_MAX];      /* the queue's */
    char endpoint[SQS_URL_MAX]; /* scheme, host, port and a slash */
    char queue[SEMEL_ID_MAX + 1];
    char region[65];
    char *access_key, *secret_key, *session_token;
    struct semel_curl_tls tls;
    bool fifo;
    int visibility_s, wait_s;
    size_t in_flight_max;
};

struct sqs_call {
    CURL *easy; /* reused for all requests */
    struct curl_slist *headers;
    struct semel_buf request, answer;
    struct semel_curl_body body; /* the request */
    bool active, ended;
    CURLcode code;
    int64_t begun_us;
    /* Used by sqs.c. */
    size_t asked; /* of a receive: how many messages */
    enum sqs_duty duty;
    struct sqs_entry entries[SQS_BATCH];
    size_t n_entries;
};

/* `call->request` is filled in. Not OK: nothing was started. */
semel_status semel__sqs_call_begin(struct sqs_call *call, CURLM *multi, const struct sqs_conf *conf, const char *action,
                                   int timeout_ms, struct semel_error *err);
/* Drives all requests; marks those that have ended. */
void semel__sqs_calls_run(CURLM *multi);
/* The call has ended: OK if its answer can be read, otherwise what went wrong. */
semel_status semel__sqs_call_status(struct sqs_call *call, const struct sqs_conf *conf, struct semel_error *err);
void semel__sqs_call_done(struct sqs_call *call, CURLM *multi); /* aborts an active call */

#endif
