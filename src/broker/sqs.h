/* SPDX-License-Identifier: MIT
 *
 * sqs.h: Amazon SQS and compatible servers as a source (one queue) and as a sink, with libcurl.
 *
 * What SQS guarantees. A message that was received is invisible to all for its visibility time, then it comes again,
 * with another receipt handle. A standard queue has no order and may deliver twice at any time. A FIFO queue (".fifo")
 * delivers a message group in order, and while a message of a group is invisible it delivers none of that group to
 * anybody.
 *
 * What is promised
 *  - A delivery's source is the queue's name; there is no position. Headers are the message attributes of the types
 *    String and Number (binary ones are left out). Properties: `message_id`, and if present `sent_timestamp`
 *    (milliseconds since 1970), `group`, `deduplication_id`, `sequence_number`. `delivery` is SQS's own count.
 *  - The lane of a FIFO queue is the message group; in a standard queue every delivery is a lane of its own.
 *  - While a delivery is unanswered poll extends its visibility when half of it is over (P37): a caller that polls
 *    twice in that time keeps it, for the 12 hours that SQS allows. When SQS reports that it is no longer ours, or
 *    the message comes again, the old tag is fenced. In a FIFO group that also fences the deliveries behind it.
 *  - Answers start at once; poll, reopen and close finish them and try them again. An answer that fails until the
 *    visibility is over is dropped: the message then comes again by itself.
 *  - Giving back makes the message visible after the delay (whole seconds, rounded up). In a FIFO queue all our
 *    deliveries of the group behind it are given back with it. Since the group delivers nothing while one of them is
 *    invisible, they come again in order, whichever of them becomes visible first.
 *  - poll keeps to its wait; a long poll of `wait_us` continues across calls. Messages that it receives wait for the
 *    next poll, and their visibility is extended too. close and reopen give everything back and take CLOSE_MS at
 *    most. A long poll that they abort may have received messages: they come again when their visibility is over.
 *  - A body that does not have the MD5 that SQS gives for it is not delivered; it comes again.
 *  - Errors: throttling, 5xx and the network are RETRY and ENVIRONMENT, and tried again with growing pauses; what
 *    credentials, policies or a wrong queue cause is INVALID and BROKEN. poll goes on telling the last one until a
 *    request has succeeded. No text holds a key, a token or a receipt.
 *  - publish: the destination is the name of a queue beside ours. SQS takes texts only: what is not UTF-8, or is empty,
 *    or has more than 10 headers, is INVALID. No request is sent twice (P54): UNKNOWN when its answer was lost. Several
 *    requests are on their way at a time. To FIFO queues the key is the group, the id the deduplication id, and of one
 *    group one message is on its way at a time (P69). A queue that is missing or denied is RETRY and `down` (P111).
 *  - TLS is 1.2 or later and verified; redirects are not followed, and proxies of the environment not used.
 */
#ifndef SEMEL_BROKER_SQS_H
#define SEMEL_BROKER_SQS_H

#include "base/setting.h"
#include "core/broker.h"

/* Everything is borrowed until the call returns. Unset: NULL, 0. */
struct semel_sqs_options {
    const char *url;    /* the queue's: https://sqs.eu-central-1.amazonaws.com/123456789012/payments */
    const char *region; /* for the signature of requests */
    const char *access_key, *secret_key;
    const char *session_token;    /* of temporary credentials */
    int64_t visibility_us;        /* rounded up to seconds, to 12 hours; 0: 60 s */
    int64_t wait_us;              /* of a long poll: 0 to 20 s, rounded down to seconds; 0: no long poll */
    size_t in_flight_max;         /* unanswered deliveries; 0: 1,000 */
    struct semel_setting_tls tls; /* the URL turns it on */
};

/* INVALID: err names the wrong setting. Does not connect yet: poll reports a queue that cannot be reached. */
semel_status semel__broker_sqs_open(struct semel_broker **ret, const struct semel_sqs_options *options,
                                    struct semel_error *err);

struct semel_sqs_view {
    size_t in_flight; /* delivered and without an answer */
    size_t waiting;   /* received, to be delivered by the next poll */
    size_t answers;   /* acknowledged or given back, not yet confirmed by SQS */
};
void semel__sqs_view(struct semel_broker *broker, struct semel_sqs_view *ret);
/* Messages that the queue has, about: visible ones and those that somebody has received; -1: not known. From the first
 * call on poll asks SQS every 30 s. A refusal, or no answer, harms nothing. */
int64_t semel__sqs_behind(struct semel_broker *broker);

/* The attributes of the queue; SEMEL_NONE: unknown. */
struct semel_sqs_facts {
    bool fifo, content_deduplication;
    int64_t retention_us, visibility_us, delay_us;
    int64_t messages, in_flight, delayed; /* approximately */
    int64_t max_receives; /* after so many SQS itself moves a message away: the redrive policy; NONE: never */
    char dead_letters[SEMEL_ID_MAX + 1]; /* where to; "": nowhere */
};

/* One request, for `semel check --online`. Statuses as of poll. */
semel_status semel__sqs_ask(const struct semel_sqs_options *options, struct semel_sqs_facts *ret,
                            struct semel_error *err);

#endif
