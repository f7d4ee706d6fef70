/* SPDX-License-Identifier: MIT
 *
 * outside_effect.c: a consumer whose effect is outside the database, where no transaction reaches. The "remote side" is
 * a file to which a line is added.
 *
 * usage: outside_effect FILE.db REMOTE.txt
 *
 * The message is claimed under a lease, and that is committed, before anything happens outside. The call carries a key
 * that is the same on every try, on every machine. Its end is written under the token of the claim. Where the answer
 * was lost nobody knows whether it happened: the message becomes `unknown`, is not run again, and waits for somebody
 * who asks the other side. Run it again: nothing is sent twice.
 */
#include <semel/semel.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *id, *text;
    int answer_lost;
} mails[] = {{"mail-1", "welcome, Ann", 0}, {"mail-2", "your invoice", 1}, {"mail-1", "welcome, Ann", 0}};

static const char *remote;

/* The outside call: what a POST with an Idempotency-Key would be. */
static semel_status send_mail(const char *key, const char *text)
{
    FILE *file = fopen(remote, "a");
    if (file == NULL)
        return SEMEL_RETRY;
    fprintf(file, "%s %s\n", key, text);
    return fclose(file) == 0 ? SEMEL_OK : SEMEL_UNKNOWN;
}

/* The reconcile: does the other side know the key? */
static int was_sent(const char *key)
{
    char line[512];
    int found = 0;
    FILE *file = fopen(remote, "r");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, key, strlen(key)) == 0;
    if (file != NULL)
        fclose(file);
    return found;
}

/* Under the claim: the effect, then its end. Where the work is long, semel_inbox_renew is called meanwhile. */
static semel_status run(struct semel *s, const struct semel_msg *msg, int64_t token, int answer_lost,
                        struct semel_error *err)
{
    char key[SEMEL_STEP_KEY_SIZE];
    semel_status status = semel_step_key(msg, "effect", key, err);
    if (status == SEMEL_OK)
        status = semel_inbox_renew(s, token, 60000, err); /* FENCED: it is somebody else's by now; stop */
    if (status != SEMEL_OK)
        return status;
    semel_status sent = send_mail(key, msg->payload.p);
    if (sent == SEMEL_RETRY) /* certainly not sent: it may be tried again */
        return semel_inbox_finish(s, token, SEMEL_TRANSIENT, semel_str(NULL), semel_str("cannot connect"), err);
    if (sent == SEMEL_UNKNOWN || answer_lost)
        return semel_inbox_finish(s, token, SEMEL_MAYBE, semel_str(NULL), semel_str("no answer"), err);
    return semel_inbox_finish(s, token, SEMEL_DONE, semel_str("{\"sent\":true}"), semel_str(NULL), err);
}

static semel_status handle(struct semel *s, size_t i, struct semel_error *err)
{
    struct semel_msg msg;
    struct semel_verdict verdict;
    char key[SEMEL_STEP_KEY_SIZE];
    semel_msg_init(&msg);
    msg.consumer = semel_str("mailer");
    msg.id = semel_str(mails[i].id);
    msg.payload = semel_str(mails[i].text);
    semel_status status = semel_inbox_claim(s, &msg, 0, &verdict, err);
    if (status != SEMEL_OK)
        return status;
    printf("%s: %s, %s", mails[i].id, semel_act_name(verdict.act), semel_why_name(verdict.why));
    if (verdict.act == SEMEL_RUN) {
        status = run(s, &msg, verdict.token, mails[i].answer_lost, err);
        printf(", sent%s\n", mails[i].answer_lost ? " without an answer" : "");
    } else if (verdict.why == SEMEL_WHY_UNKNOWN) {
        status = semel_step_key(&msg, "effect", key, err);
        printf(", the other side %s it: semel inbox resolve or retry\n", was_sent(key) ? "has" : "does not have");
    } else {
        printf(", first answer %.*s\n", (int)verdict.outcome.n, verdict.outcome.n > 0 ? verdict.outcome.p : "");
    }
    return status;
}

int main(int argc, char **argv)
{
    struct semel *s = NULL;
    struct semel_error err;
    char url[4096];
    if (argc != 3) {
        fprintf(stderr, "usage: outside_effect FILE.db REMOTE.txt\n");
        return 2;
    }
    snprintf(url, sizeof url, "sqlite:%s", argv[1]);
    remote = argv[2];
    semel_status status = semel_open(&s, url, SEMEL_CREATE | SEMEL_MIGRATE, &err);
    /* What the consumer promises: a lease that runs out leaves an unknown outcome, never a second try on a guess. */
    if (status == SEMEL_OK)
        status = semel_consumer_set(s, "mailer", "{\"effect\": \"outside\", \"lease\": \"60s\"}", &err);
    if (status == SEMEL_OK)
        status = semel_tick(s, 1000, NULL, &err); /* a program that stays calls it every second or so */
    for (size_t i = 0; status == SEMEL_OK && i < sizeof mails / sizeof mails[0]; i++)
        status = handle(s, i, &err);
    if (status != SEMEL_OK)
        fprintf(stderr, "outside_effect: %s\n", err.text);
    semel_close(s);
    return status == SEMEL_OK ? 0 : 1;
}
