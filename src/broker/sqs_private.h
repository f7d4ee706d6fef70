/* SPDX-License-Identifier: MIT
 *
 * sqs_private.h: the inside of the SQS driver:
 *   sqs.c       the options, what is held, receiving and the chores, poll, answers, publish
 *   sqs_http.c  one signed request by curl, what a refusal means, SQS's answers, which are hostile JSON, as structs
 *
 * All requests of a handle are one curl multi, driven by whoever calls; no thread, no request behind the caller's back.
 * A request is "AWS JSON 1.0": POST to the endpoint's root, the action in a header, JSON in and out.
 *
 * Invariants: a slot of `held` is named by its tag alone, so that an answer that comes late meets nothing, or the same
 * message; the number of slots has a bound, and so has each answer.
 */
#ifndef SEMEL_BROKER_SQS_PRIVATE_H
#define SEMEL_BROKER_SQS_PRIVATE_H

#include <curl/curl.h>

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "broker/sqs.h"

#define SQS_BATCH 10
#define SQS_RECEIVES 4
#define SQS_CHORES 4
#define SQS_CALLS (SQS_RECEIVES + SQS_CHORES)
#define SQS_SENDS 8        /* requests of a publish at a time */
#define SQS_HEADERS_MAX 64 /* SQS itself allows 10 */
#define SQS_IN_FLIGHT_MAX ((size_t)100000)
#define SQS_SECOND_US INT64_C(1000000)
#define SQS_LONGEST_S 43200 /* that a message may be invisible, from when it was received */
#define SQS_ANSWER_MAX ((size_t)8 << 20)
#define SQS_URL_MAX 1024

/* ---- answers ------------------------------------------------------------------------------------------ */

/* All texts lie in the answer's document. */
struct sqs_message {
    struct semel_str id, handle, body, group, deduplication, sequence, sent;
    struct semel_pair headers[SQS_HEADERS_MAX];
    size_t n_headers;
    int delivery;
    bool damaged; /* the body is not what its MD5 says */
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
    SQS_AGAIN,  /* SQS's own trouble */
    SQS_GONE,   /* the receipt is not, or no longer, good for anything */
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

/* ---- what is held ------------------------------------------------------------------------------------- */

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
    char *text; /* owned: what the four below point into */
    struct semel_str id, handle, group, sequence;
    bool busy; /* a request about it is under way */
    int delay_s;
    int tries;
    int64_t received_us;
    int64_t until_us; /* invisible to others until then, as far as we know */
    int64_t next_us;  /* when something is to be done about it */
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
void semel__sqs_held_settle(struct sqs_held *held); /* only what waits to be delivered stays */
/* NULL: fenced, or never ours. */
struct sqs_slot *semel__sqs_held_find(struct sqs_held *held, uint64_t tag);
/* Takes a slot for a message that has come, and fences what it makes stale. 0: no memory, or no room. */
uint64_t semel__sqs_held_take(struct sqs_held *held, const struct sqs_message *message, int64_t now_us);
bool semel__sqs_held_ack(struct sqs_held *held, uint64_t tag, int64_t now_us);
/* Also all that is behind it in its group. false: fenced. */
bool semel__sqs_held_back(struct sqs_held *held, uint64_t tag, int delay_s, int64_t now_us);
/* Up to SQS_BATCH entries about which it is time to ask; their slots are busy until `ended`. Drops what is over. */
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
    char *ca_file, *cert_file, *key_file, *key_password;
    bool no_verify, fifo;
    int visibility_s, wait_s;
    size_t in_flight_max;
};

struct sqs_call {
    CURL *easy; /* kept from request to request */
    struct curl_slist *headers;
    struct semel_buf request, answer;
    size_t sent; /* of the request, handed to curl: 0 means that nobody has seen it */
    bool active, ended;
    CURLcode code;
    int64_t begun_us;
    /* Of sqs.c. */
    size_t asked; /* of a receive: how many messages */
    enum sqs_duty duty;
    struct sqs_entry entries[SQS_BATCH];
    size_t n_entries;
};

/* `call->request` is filled in. Not OK: nothing was begun. */
semel_status semel__sqs_call_begin(struct sqs_call *call, CURLM *multi, const struct sqs_conf *conf, const char *action,
                                   int timeout_ms, struct semel_error *err);
/* Drives all requests; marks those that have ended. */
void semel__sqs_calls_run(CURLM *multi);
/* The call is over; is its answer one to read? If not: what that means. */
semel_status semel__sqs_call_status(struct sqs_call *call, const struct sqs_conf *conf, struct semel_error *err);
void semel__sqs_call_done(struct sqs_call *call, CURLM *multi); /* one that is active is cut off */

#endif
