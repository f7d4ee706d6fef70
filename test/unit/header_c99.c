/* SPDX-License-Identifier: MIT
 *
 * header_c99.c: the public headers, compiled as strict C99 by a program that has nothing but them and the shared
 * library.
 */
#include <semel/semel.h>

#include <stdio.h>
#include <string.h>

static semel_status handle(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                           struct semel_reply *reply, struct semel_error *err)
{
    (void)ctx;
    (void)err;
    if (semel_native(s) == NULL || msg->id.n == 0 || attempt != 1)
        return semel_fail(err, SEMEL_CLASS_PERMANENT, "wrong");
    return semel_reply_set(reply, SEMEL_DONE, semel_str(NULL), semel_str("{}"));
}

int main(void)
{
    struct semel *s = NULL;
    struct semel_error err;
    struct semel_msg msg;
    struct semel_verdict verdict;
    char key[SEMEL_STEP_KEY_SIZE], id[SEMEL_EVENT_ID_SIZE];
    struct semel_event event;
    int ok;
    semel_msg_init(&msg);
    semel_verdict_init(&verdict);
    semel_event_init(&event);
    msg.consumer = semel_str("c");
    msg.id = semel_str("1");
    event.aggregatetype = event.aggregateid = event.type = semel_str("x");
    ok = msg.size == sizeof msg && msg.version == SEMEL_NONE && strcmp(semel_version(), "0.1.0") == 0;
    ok = ok && semel_open(&s, "sqlite::memory:", SEMEL_CREATE | SEMEL_MIGRATE, &err) == SEMEL_OK;
    ok = ok && semel_inbox_process(s, &msg, 1, handle, NULL, &verdict, &err) == SEMEL_OK;
    ok = ok && verdict.act == SEMEL_ACK && verdict.why == SEMEL_WHY_NEW && verdict.outcome.n == 2;
    ok = ok && semel_step_key(&msg, "step", key, &err) == SEMEL_OK && strlen(key) == SEMEL_STEP_KEY_SIZE - 1;
    ok = ok && semel_outbox_put(s, &event, id, &err) == SEMEL_OK && strlen(id) == SEMEL_EVENT_ID_SIZE - 1;
    if (!ok)
        printf("%s\n", err.text);
    semel_close(s);
    return ok ? 0 : 1;
}
