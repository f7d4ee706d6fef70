/* SPDX-License-Identifier: MIT
 *
 * kafka_why.c: why there is no connection, from librdkafka's reasons to words that name our settings.
 *
 * A reason reads "PROTOCOL://HOST:PORT/ID: TEXT (after N ms in state STATE)", without the protocol where it is
 * "plaintext". What a server has said may be in it.
 *
 * Invariants: the text that comes out has neither a secret nor a control character in it, and says where.
 */
#define _GNU_SOURCE /* memrchr */
#include "broker/kafka_private.h"

#include <stdio.h>

#include "broker/tls_why.h"

#define SAID 160
#define WARN_LEVEL 3 /* as syslog counts */

/* Reasons with words of ours; those that have `says` replace the text, the others go behind it. */
static const struct {
    const char *has, *says, *hint;
    bool broken; /* somebody's settings are wrong; if not, a server that goes down looks the same */
} known[] = {
    {"alert bad certificate", NULL, "; it wants a certificate that it trusts, by tls.cert_file and tls.key_file", true},
    {"certificate required", NULL, "; it wants a certificate that it trusts, by tls.cert_file and tls.key_file", true},
    {"alert unknown ca", NULL, "; it does not trust the authority of tls.cert_file", true},
    {"alert certificate unknown", NULL, "; it does not trust the certificate of tls.cert_file", true},
    {"unexpected eof", "the server hung up in the TLS handshake", "; is TLS spoken at that port? else say no tls",
     true},
    {"wrong version number", "TLS is not spoken at that port", "; say no tls, or take the port that has it", true},
    {"PLAINTEXT broker listener", "TLS is not spoken at that port", "; say no tls, or take the port that has it", true},
    {"SASL authentication error", NULL, "; see sasl.user, sasl.password and sasl.mechanism", true},
    {"connecting to a SSL listener", "the server hung up at the first request",
     "; does that port want tls, or no sasl?", false},
    {"might require SASL", "the server hung up", "; does that port want sasl?", false},
};

static const struct {
    const char *theirs, *ours;
} names[] = {
    {"ssl.ca.location", "tls.ca_file"},
    {"ssl.certificate.location", "tls.cert_file"},
    {"ssl.key.location", "tls.key_file"},
    {"ssl.key.password", "tls.key_password"},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The settings have other names with us. `out` has n bytes. */
static void rename_settings(char *out, size_t n, const char *text)
{
    size_t used = 0;

    while (*text != '\0' && used + 1 < n) {
        size_t i = 0;
        while (i < COUNT(names) && strncmp(text, names[i].theirs, strlen(names[i].theirs)) != 0)
            i++;
        if (i == COUNT(names)) {
            out[used++] = *text++;
            continue;
        }
        used += (size_t)snprintf(out + used, n - used, "%s", names[i].ours);
        used = used < n ? used : n - 1;
        text += strlen(names[i].theirs);
    }
    out[used] = '\0';
}

semel_status semel__kafka_refused(const char *text, struct semel_error *err)
{
    char shown[SAID], said[SAID];
    const bool key = strstr(text, "ssl.key.location") != NULL;

    semel__str_show(shown, sizeof shown, semel__str(text));
    rename_settings(said, sizeof said, shown);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "kafka: %s%s", said,
                       key ? "; is it PEM, the key of tls.cert_file, and opened by tls.key_password?" : "");
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the type is librdkafka's */
int semel__kafka_certificate(rd_kafka_t *rk, const char *broker, int32_t id, int *x509_error, int depth,
                             const char *buf, size_t size, char *text, size_t n_text, void *opaque)
{
    struct kafka_ear *ear = opaque;

    (void)rk, (void)broker, (void)id, (void)depth, (void)buf, (void)size;
    if (*x509_error == 0)
        return 1;
    atomic_store(&ear->x509, *x509_error);
    snprintf(text, n_text, "%s", semel__tls_why(*x509_error));
    return 0;
}

/* Where, without the number of the broker, which is "bootstrap" for those of the settings; what was said, without the
 * time that it took. */
static void take_apart(const char *reason, struct semel_str *ret_where, struct semel_str *ret_said)
{
    const char *end = strstr(reason, ": "), *time;
    const size_t n = end != NULL ? (size_t)(end - reason) : 0;

    *ret_where = SEMEL_STR("the servers");
    if (n > 0 && memchr(reason, ' ', n) == NULL) {
        const char *slash = memrchr(reason, '/', n);
        const bool numbered = slash > reason && slash[-1] != '/';
        *ret_where = (struct semel_str){reason, numbered ? (size_t)(slash - reason) : n};
        reason = end + 2;
    }
    time = strstr(reason, " (after ");
    *ret_said = (struct semel_str){reason, time != NULL ? (size_t)(time - reason) : strlen(reason)};
}

void semel__kafka_explain(struct kafka *kafka, int code, enum semel_class cls, const char *reason)
{
    const int x509 = strstr(reason, "certificate verify failed") != NULL ? atomic_load(&kafka->ear->x509) : 0;
    struct semel_str where, said;
    char at[96], text[SAID], ours[SAID];
    const char *hint = "";

    take_apart(reason, &where, &said);
    semel__str_show(at, sizeof at, where);
    semel__str_show(text, sizeof text, said);
    rename_settings(ours, sizeof ours, text);
    for (size_t i = 0; x509 == 0 && i < COUNT(known); i++) {
        if (strstr(reason, known[i].has) == NULL)
            continue;
        if (known[i].says != NULL)
            snprintf(ours, sizeof ours, "%s", known[i].says);
        hint = known[i].hint;
        cls = known[i].broken ? SEMEL_CLASS_BROKEN : cls;
        break;
    }
    if (x509 != 0)
        semel__fail(&kafka->why, SEMEL_RETRY, SEMEL_CLASS_BROKEN, "kafka: %s: its certificate is not believed: %s", at,
                    semel__tls_why(x509));
    else
        semel__fail(&kafka->why, SEMEL_RETRY, cls, "kafka: %s: %s%s", at, ours, hint);
    kafka->why.code = code;
}

/* Reading goes on, and what is not committed comes again after a restart. A group that is changing refuses as well, and
 * that is no news. */
void semel__kafka_tell_commit(struct kafka *kafka, rd_kafka_resp_err_t code)
{
    char text[160];
    const bool news = code != kafka->refused;

    kafka->refused = code;
    if (!news || kafka->log == NULL || code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR__NO_OFFSET ||
        code == RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS || code == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION ||
        code == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID || code == RD_KAFKA_RESP_ERR__ASSIGNMENT_LOST)
        return;
    snprintf(text, sizeof text, "the group's offsets cannot be committed: %s", rd_kafka_err2str(code));
    kafka->log(kafka->log_ctx, WARN_LEVEL, "COMMIT", text);
}
