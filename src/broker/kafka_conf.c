/* SPDX-License-Identifier: MIT
 *
 * kafka_conf.c: everything of a Kafka handle that is not the consumer group: its options as librdkafka's settings, what
 * librdkafka says of them and of a connection in words that name our settings, and questions to the servers.
 *
 * Three layers of settings: those that the driver's guarantees need (fixed), those that keep a handle small
 * (`defaults`, which a property of the same name replaces), and the user's properties, of the list `allowed`. Fetched
 * records are in one queue, which is filled while it is shorter than 500 records and 512 KB, by answers of at most
 * 512 KB each, so that ten sources stay small. A larger record still comes, alone.
 *
 * A reason of librdkafka reads "PROTOCOL://HOST:PORT/ID: TEXT (after N ms in state STATE)", without the protocol
 * where it is "plaintext". It may contain text of a server.
 *
 * A question joins no group, reads nothing, and creates no topic, whatever the servers allow.
 *
 * Invariants: no secret is ever part of an error's text, and no control character; a topic name is checked, because
 * librdkafka takes one that begins with '^' for a pattern. Every wait of a question counts against one time-out; what a
 * server does not tell stays "not told", never a guess.
 */
#define _GNU_SOURCE /* memrchr */
#include "broker/kafka_private.h"

#include <stdio.h>

#include "broker/tls_why.h"

#define TEXT 512
#define TOPICS_MAX 256
#define IN_FLIGHT 10000
#define DEBUG_LEVEL 7
#define SAID 160
#define STEP_MS 500
#define TIMEOUT_MIN_MS 100 /* message.timeout.ms */
#define LINGER_MAX_MS 900000
#define BATCH_REST ((size_t)4096) /* what a request has besides records, at most */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define READ 1u
#define WRITE 2u
#define BOTH 3u

struct setting {
    unsigned who;
    const char *name, *value;
};

static const struct setting fixed[] = {
    {READ, "enable.auto.commit", "false"},
    {READ, "enable.auto.offset.store", "false"},
    {READ, "auto.offset.reset", "error"},
    {READ, "isolation.level", "read_committed"},
    {READ, "enable.partition.eof", "false"},
    {READ, "check.crcs", "true"},
    {READ, "allow.auto.create.topics", "false"},
    {WRITE, "enable.idempotence", "true"},
    {WRITE, "acks", "all"},
    /* Requests for several partitions. Of one partition there is one on its way (kafka_sink.c): with more, a batch that
     * is to be sent again to a partition which knows nothing of us yet may find the next one there already. The server
     * then takes it for a duplicate, and what was lost is confirmed. */
    {WRITE, "max.in.flight.requests.per.connection", "5"},
    {WRITE, "batch.num.messages", "10000"},
    {WRITE, "batch.size", "1000000"},
    {WRITE, "log.connection.close", "false"}, /* of a reader's connections it is a reason, see semel__kafka_explain */
    {READ, "message.max.bytes", "262144"}, /* a writer's bound, but fetch.max.bytes may not be less; bounds no record */
};

static const struct setting defaults[] = {
    {BOTH, "client.id", "semel"},
    {BOTH, "socket.keepalive.enable", "true"},
    {BOTH, "ssl.endpoint.identification.algorithm", "https"}, /* the certificate must have the name of the server */
    {BOTH, "socket.timeout.ms", "30000"},
    {BOTH, "reconnect.backoff.max.ms", "2000"},
    /* TLS 1.2 at least: the library has no setting for that, but the remaining ciphers need it. */
    {BOTH, "ssl.cipher.suites", "DEFAULT:!TLSv1.0:!SSLv3"},
    {READ, "partition.assignment.strategy", "cooperative-sticky"},
    {READ, "session.timeout.ms", "10000"},
    {READ, "fetch.wait.max.ms", "1000"}, /* how long the server holds an idle fetch; new records are sent at once */
    {READ, "queued.min.messages", "500"},
    {READ, "queued.max.messages.kbytes", "512"},
    {READ, "fetch.max.bytes", "524288"},
    {READ, "max.partition.fetch.bytes", "262144"},
    {WRITE, "queue.buffering.max.kbytes", "16384"},
    {WRITE, "message.timeout.ms", "300000"},
    {WRITE, "topic.metadata.propagation.max.ms", "1000"}, /* then a topic that nobody knows does not exist */
    {WRITE, "partitioner", "murmur2_random"},             /* as Java's clients do it */
};

/* In alphabetical order, as they are listed for people. */
static const struct setting allowed[] = {
    {BOTH, "broker.address.family", NULL},
    {BOTH, "broker.address.ttl", NULL},
    {BOTH, "client.id", NULL},
    {READ, "client.rack", NULL},
    {WRITE, "compression.codec", NULL},
    {WRITE, "compression.level", NULL},
    {BOTH, "connections.max.idle.ms", NULL},
    {BOTH, "debug", NULL},
    {READ, "fetch.error.backoff.ms", NULL},
    {READ, "fetch.max.bytes", NULL},
    {READ, "fetch.min.bytes", NULL},
    {READ, "fetch.wait.max.ms", NULL},
    {READ, "group.instance.id", NULL},
    {READ, "heartbeat.interval.ms", NULL},
    {READ, "max.partition.fetch.bytes", NULL},
    {READ, "max.poll.interval.ms", NULL},
    {WRITE, "message.max.bytes", NULL},
    {WRITE, "message.timeout.ms", NULL},
    {BOTH, "metadata.max.age.ms", NULL},
    {READ, "partition.assignment.strategy", NULL},
    {WRITE, "partitioner", NULL},
    {WRITE, "queue.buffering.max.kbytes", NULL},
    {READ, "queued.max.messages.kbytes", NULL},
    {READ, "queued.min.messages", NULL},
    {BOTH, "receive.message.max.bytes", NULL},
    {BOTH, "reconnect.backoff.max.ms", NULL},
    {BOTH, "reconnect.backoff.ms", NULL},
    {WRITE, "request.timeout.ms", NULL},
    {BOTH, "sasl.kerberos.keytab", NULL},
    {BOTH, "sasl.kerberos.principal", NULL},
    {BOTH, "sasl.kerberos.service.name", NULL},
    {READ, "session.timeout.ms", NULL},
    {BOTH, "socket.keepalive.enable", NULL},
    {BOTH, "socket.timeout.ms", NULL},
    {BOTH, "ssl.cipher.suites", NULL},
    {BOTH, "ssl.crl.location", NULL},
    {WRITE, "topic.metadata.propagation.max.ms", NULL},
    {BOTH, "topic.metadata.refresh.interval.ms", NULL},
};

size_t semel__kafka_properties(const char *const **ret_names)
{
    static const char *names[COUNT(allowed)];

    for (size_t i = 0; i < COUNT(allowed); i++)
        names[i] = allowed[i].name; /* the same from every thread */
    *ret_names = names;
    return COUNT(allowed);
}

/* At OpenSSL's level 0 there are ciphers without a certificate, and so without a checked name. */
static bool unchecked(const char *name, const char *value)
{
    return strcmp(name, "ssl.cipher.suites") == 0 && strstr(value, "@SECLEVEL") != NULL;
}

semel_status semel__kafka_property(const char *name, const char *value, struct semel_error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    semel_status status = SEMEL_OK;
    char text[TEXT];

    if (conf == NULL)
        return semel__fail_memory(err);
    if (unchecked(name, value))
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                             "a security level of its own could let a server in that shows no certificate");
    else if (rd_kafka_conf_set(conf, name, value, text, sizeof text) != RD_KAFKA_CONF_OK)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s", text);
    rd_kafka_conf_destroy(conf);
    return status;
}

/* ---- librdkafka's settings ---------------------------------------------------------------------------- */

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "kafka: %s", what);
}

static semel_status set(struct kafka *kafka, unsigned who, const char *name, const char *value, struct semel_error *err)
{
    char text[TEXT];

    if (value == NULL)
        return SEMEL_OK;
    if (((who & READ) != 0 && kafka->reader != NULL &&
         rd_kafka_conf_set(kafka->reader, name, value, text, sizeof text) != RD_KAFKA_CONF_OK) ||
        ((who & WRITE) != 0 && rd_kafka_conf_set(kafka->writer, name, value, text, sizeof text) != RD_KAFKA_CONF_OK))
        return wrong(err, text);
    return SEMEL_OK;
}

static semel_status set_all(struct kafka *kafka, const struct setting *settings, size_t n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = set(kafka, settings[i].who, settings[i].name, settings[i].value, err);
    return status;
}

static semel_status set_property(struct kafka *kafka, const struct semel_pair *property, struct semel_error *err)
{
    const char *name = property->name.p, *value = property->value.p;
    const char *const *names;
    const size_t n = semel__kafka_properties(&names);
    const char *near = semel__nearest(name, names, n);
    char shown[64];

    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0 && !unchecked(name, value))
            return set(kafka, allowed[i].who, name, value, err);
    semel__str_show(shown, sizeof shown, property->name);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "kafka: the property \"%s\" cannot be set here%s%s%s",
                       shown, near != NULL ? "; did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
}

static int64_t number_of(const rd_kafka_conf_t *conf, const char *name)
{
    char text[24] = "";
    size_t n = sizeof text;
    int64_t number = 0;

    if (rd_kafka_conf_get(conf, name, text, &n) == RD_KAFKA_CONF_OK)
        (void)semel__str_int64(semel__str(text), &number);
    return number;
}

/* At least three heartbeats per session. */
static semel_status set_at_most(struct kafka *kafka, const char *name, int64_t most, struct semel_error *err)
{
    char text[24];

    if (number_of(kafka->reader, name) <= most)
        return SEMEL_OK;
    snprintf(text, sizeof text, "%lld", (long long)most);
    return set(kafka, READ, name, text, err);
}

/* Nothing leaves before a flush, and no message times out before its call. */
static semel_status set_sink(struct kafka *kafka, struct semel_error *err)
{
    const int64_t timeout_ms = number_of(kafka->writer, "message.timeout.ms");
    const int64_t message_bytes = number_of(kafka->writer, "message.max.bytes");
    const int64_t batch_bytes = number_of(kafka->writer, "batch.size");
    char text[24];

    if (timeout_ms < TIMEOUT_MIN_MS)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "kafka: message.timeout.ms is below %d",
                           TIMEOUT_MIN_MS);
    kafka->sink.longest_ms = (int)(timeout_ms - timeout_ms / 10);
    kafka->sink.batch_bytes = (size_t)(message_bytes < batch_bytes ? message_bytes : batch_bytes);
    kafka->sink.batch_bytes -= kafka->sink.batch_bytes > 2 * BATCH_REST ? BATCH_REST : kafka->sink.batch_bytes / 2;
    snprintf(text, sizeof text, "%lld", (long long)(timeout_ms - 1 < LINGER_MAX_MS ? timeout_ms - 1 : LINGER_MAX_MS));
    return set(kafka, WRITE, "linger.ms", text, err);
}

/* Times that follow from others, whoever has set those. The library itself refuses an idle fetch that is not over a
 * second before we lose patience with the server. */
static semel_status set_times(struct kafka *kafka, struct semel_error *err)
{
    semel_status status = set_sink(kafka, err);
    int64_t session_ms, socket_ms;

    if (kafka->reader == NULL || status != SEMEL_OK)
        return status;
    kafka->patience_us = number_of(kafka->reader, "max.poll.interval.ms") * 1000;
    session_ms = number_of(kafka->reader, "session.timeout.ms");
    socket_ms = number_of(kafka->reader, "socket.timeout.ms");
    status = set_at_most(kafka, "heartbeat.interval.ms", session_ms >= 6 ? session_ms / 3 : 1, err);
    if (status == SEMEL_OK && socket_ms >= 1000)
        status = set_at_most(kafka, "fetch.wait.max.ms", socket_ms - 1000, err);
    return status;
}

static semel_status set_security(struct kafka *kafka, const struct semel_kafka_options *o, struct semel_error *err)
{
    const bool tls = o->tls.on || o->tls.ca_file != NULL || o->tls.cert_file != NULL || o->tls.key_file != NULL;
    const bool sasl = o->sasl.on;
    const struct setting settings[] = {
        {BOTH, "security.protocol", sasl ? (tls ? "sasl_ssl" : "sasl_plaintext") : (tls ? "ssl" : "plaintext")},
        {BOTH, "ssl.ca.location", o->tls.ca_file},
        {BOTH, "ssl.certificate.location", o->tls.cert_file},
        {BOTH, "ssl.key.location", o->tls.key_file},
        {BOTH, "sasl.mechanism", sasl ? semel__kafka_mechanism_name(o->sasl.mechanism) : NULL},
        {BOTH, "sasl.username", sasl ? o->sasl.user : NULL},
    };
    semel_status status = set_all(kafka, settings, COUNT(settings), err);

    if (status == SEMEL_OK && (o->sasl.user != NULL) != (o->sasl.password != NULL))
        status = wrong(err, "a user and a password belong together; one of them is missing");
    if (status == SEMEL_OK && (set(kafka, BOTH, "ssl.key.password", o->tls.key_password, NULL) != SEMEL_OK ||
                               set(kafka, BOTH, "sasl.password", o->sasl.password, NULL) != SEMEL_OK))
        status = wrong(err, "librdkafka refuses a password"); /* its own text might quote it */
    return status;
}

/* ---- why there is no connection ------------------------------------------------------------------------ */

/* Known reasons; those with `says` replace the text, the others are appended to it. */
static const struct {
    const char *has, *says, *hint;
    bool broken; /* wrong settings; otherwise a server that goes down looks the same */
} known[] = {
    {"alert bad certificate", NULL, "; it requires a certificate that it trusts: set tls.cert_file and tls.key_file",
     true},
    {"certificate required", NULL, "; it requires a certificate that it trusts: set tls.cert_file and tls.key_file",
     true},
    {"alert unknown ca", NULL, "; it does not trust the authority of tls.cert_file", true},
    {"alert certificate unknown", NULL, "; it does not trust the certificate of tls.cert_file", true},
    {"unexpected eof", "the server closed the connection in the TLS handshake",
     "; does that port use TLS? if not, remove tls", true},
    {"wrong version number", "that port does not use TLS", "; remove tls, or use the port that has it", true},
    {"PLAINTEXT broker listener", "that port does not use TLS", "; remove tls, or use the port that has it", true},
    {"SASL authentication error", NULL, "; see sasl.user, sasl.password and sasl.mechanism", true},
    {"connecting to a SSL listener", "the server closed the connection at the first request",
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

/* Replaces librdkafka's names of settings by ours. `out` has n bytes. */
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
    struct kafka_callback_context *context = opaque;

    (void)rk, (void)broker, (void)id, (void)depth, (void)buf, (void)size;
    if (*x509_error == 0)
        return 1;
    atomic_store(&context->x509, *x509_error);
    snprintf(text, n_text, "%s", semel__tls_why(*x509_error));
    return 0;
}

/* Splits a reason: the place, without the number of the broker, which is "bootstrap" for those of the settings; and the
 * text, without the time that it took. */
static void split_reason(const char *reason, struct semel_str *ret_where, struct semel_str *ret_said)
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
    const int x509 = strstr(reason, "certificate verify failed") != NULL ? atomic_load(&kafka->context->x509) : 0;
    struct semel_str where, said;
    char at[96], text[SAID], ours[SAID];
    const char *hint = "";

    split_reason(reason, &where, &said);
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
        semel__fail(&kafka->why, SEMEL_RETRY, SEMEL_CLASS_BROKEN, "kafka: %s: certificate refused: %s", at,
                    semel__tls_why(x509));
    else
        semel__fail(&kafka->why, SEMEL_RETRY, cls, "kafka: %s: %s%s", at, ours, hint);
    kafka->why.code = code;
}

/* ---- ours ---------------------------------------------------------------------------------------------- */

bool semel__kafka_topic_is_valid(struct semel_str topic)
{
    for (size_t i = 0; i < topic.n; i++)
        if (!semel__is_letter(topic.p[i]) && !semel__is_digit(topic.p[i]) && topic.p[i] != '.' && topic.p[i] != '_' &&
            topic.p[i] != '-')
            return false;
    return topic.n > 0 && topic.n <= KAFKA_TOPIC_MAX && !semel__str_eqz(topic, ".") && !semel__str_eqz(topic, "..");
}

static semel_status parse_topics(struct kafka *kafka, const struct semel_kafka_options *o, struct semel_error *err)
{
    char shown[64];

    if (o->topics.n > TOPICS_MAX)
        return wrong(err, "more than 256 topics for one source");
    kafka->topics = rd_kafka_topic_partition_list_new((int)o->topics.n);
    for (size_t i = 0; i < o->topics.n; i++) {
        if (!semel__kafka_topic_is_valid(semel__str(o->topics.at[i].p))) {
            semel__str_show(shown, sizeof shown, semel__str(o->topics.at[i].p));
            return semel__fail(
                err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                "kafka: \"%s\" is not a topic name; letters, digits, '.', '_' and '-' make one, at most 249", shown);
        }
        rd_kafka_topic_partition_list_add(kafka->topics, o->topics.at[i].p, RD_KAFKA_PARTITION_UA);
    }
    return SEMEL_OK;
}

static semel_status check(const struct semel_kafka_options *o, struct semel_error *err)
{
    if (o->brokers == NULL || o->brokers[0] == '\0' || strpbrk(o->brokers, " \t\r\n/@?") != NULL)
        return wrong(err, "no brokers to begin with; they look like HOST:PORT,HOST:PORT");
    if (o->topics.n > 0 && (o->group == NULL || o->group[0] == '\0'))
        return wrong(err, "topics are read by a group, and it has no name; set group");
    if (o->group != NULL && (strlen(o->group) > SEMEL_ID_MAX || !semel__utf8_valid(semel__str(o->group))))
        return wrong(err, "the group's name is longer than 255 bytes or not UTF-8");
    if (o->in_flight_max > KAFKA_IN_FLIGHT_MAX)
        return wrong(err, "more than 1048576 deliveries in flight");
    return SEMEL_OK;
}

static void log_line(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    const struct kafka *kafka = ((const struct kafka_callback_context *)rd_kafka_opaque(rk))->kafka;

    if (kafka == NULL)
        return;
    /* Logged at each attempt to connect, and poll reports it as well. */
    if (strcmp(facility, "SSLCERTVRFY") == 0)
        level = DEBUG_LEVEL;
    kafka->hooks.log(kafka->hooks.log_ctx, level, facility, text);
}

static void be_silent(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk, (void)level, (void)facility, (void)text;
}

/* Log lines wait in a queue, so that our own thread logs them, and not while the handle is freed. */
static void set_log(const struct kafka *kafka, rd_kafka_conf_t *conf)
{
    rd_kafka_conf_set_log_cb(conf, kafka->hooks.log != NULL ? log_line : be_silent);
    rd_kafka_conf_set(conf, "log.queue", kafka->hooks.log != NULL ? "true" : "false", NULL, 0);
}

static void set_callbacks(struct kafka *kafka)
{
    rd_kafka_conf_set_opaque(kafka->writer, &kafka->writer_context);
    rd_kafka_conf_set_dr_msg_cb(kafka->writer, semel__kafka_delivered);
    set_log(kafka, kafka->writer);
    if (kafka->reader == NULL)
        return;
    rd_kafka_conf_set_opaque(kafka->reader, kafka->context);
    rd_kafka_conf_set_error_cb(kafka->reader, semel__kafka_error);
    (void)rd_kafka_conf_set_ssl_cert_verify_cb(kafka->reader, semel__kafka_certificate); /* refused: there is no TLS */
    set_log(kafka, kafka->reader);
    /* Later versions check by themselves when a full queue may have room; before 2.2 they sleep for a second. */
    kafka->must_wake = rd_kafka_conf_set(kafka->reader, "fetch.queue.backoff.ms", "5", NULL, 0) != RD_KAFKA_CONF_OK;
}

semel_status semel__kafka_configure(struct kafka *kafka, const struct semel_kafka_options *o, struct semel_error *err)
{
    semel_status status = check(o, err);

    if (status != SEMEL_OK)
        return status;
    kafka->context = semel__calloc(1, sizeof *kafka->context);
    if (kafka->context == NULL)
        return semel__fail_memory(err);
    kafka->context->kafka = kafka;
    kafka->writer_context.kafka = kafka;
    kafka->first = o->first;
    kafka->in_flight_max = o->in_flight_max > 0 ? o->in_flight_max : IN_FLIGHT;
    kafka->writer = rd_kafka_conf_new();
    kafka->reader = o->topics.n > 0 ? rd_kafka_conf_new() : NULL;
    status = parse_topics(kafka, o, err);
    if (status == SEMEL_OK)
        status = set_all(kafka, defaults, COUNT(defaults), err);
    for (size_t i = 0; status == SEMEL_OK && i < o->properties.n; i++)
        status = set_property(kafka, &o->properties.at[i], err);
    if (status == SEMEL_OK)
        status = set_all(kafka, fixed, COUNT(fixed), err);
    if (status == SEMEL_OK)
        status = set_times(kafka, err);
    if (status == SEMEL_OK)
        status = set(kafka, BOTH, "bootstrap.servers", o->brokers, err);
    if (status == SEMEL_OK)
        status = set(kafka, READ, "group.id", o->group, err);
    if (status == SEMEL_OK)
        status = set_security(kafka, o, err);
    set_callbacks(kafka);
    return status;
}

void semel__kafka_unconfigure(struct kafka *kafka)
{
    semel__kafka_sink_close(kafka);
    if (kafka->reader != NULL)
        rd_kafka_conf_destroy(kafka->reader);
    if (kafka->writer != NULL)
        rd_kafka_conf_destroy(kafka->writer);
    if (kafka->topics != NULL)
        rd_kafka_topic_partition_list_destroy(kafka->topics);
    semel__free(kafka->context);
}

/* ---- questions: topics and partitions ------------------------------------------------------------------ */

struct asking {
    struct kafka kafka; /* for its settings and errors */
    rd_kafka_t *rk;
    int64_t from_us;
    int timeout_ms;
};

static int left_ms(const struct asking *asking)
{
    return kafka_left_ms(asking->from_us, asking->timeout_ms);
}

/* With the library's reason, if there is one. */
static semel_status no_answer(struct asking *asking, rd_kafka_resp_err_t code, struct semel_error *err)
{
    if (!asking->kafka.noted && !asking->kafka.dead)
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "kafka: no answer within %d ms: %s",
                           asking->timeout_ms, rd_kafka_err2str(code));
    if (err != NULL)
        *err = asking->kafka.error;
    if (err != NULL)
        err->status = SEMEL_RETRY;
    return SEMEL_RETRY;
}

static semel_status read_metadata(const struct rd_kafka_metadata *metadata, struct semel_kafka_topic *ret,
                                  struct semel_error *err)
{
    const rd_kafka_resp_err_t code = metadata->topic_cnt == 1 ? metadata->topics[0].err
                                                              : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;

    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
    case RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE: /* it was created just now */
        ret->exists = true;
        ret->partitions = metadata->topics[0].partition_cnt;
        return SEMEL_OK;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        return SEMEL_OK;
    default:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_BROKEN, "kafka: %s: %s", ret->topic, rd_kafka_err2str(code));
    }
}

static semel_status ask_topic(struct asking *asking, struct semel_kafka_topic *ret, struct semel_error *err)
{
    rd_kafka_topic_t *topic = rd_kafka_topic_new(asking->rk, ret->topic, NULL);
    rd_kafka_resp_err_t code = topic != NULL ? RD_KAFKA_RESP_ERR__TIMED_OUT : rd_kafka_last_error();
    const struct rd_kafka_metadata *metadata = NULL;
    semel_status status;

    while (topic != NULL && metadata == NULL && left_ms(asking) > 0) {
        const int wait_ms = left_ms(asking) < STEP_MS ? left_ms(asking) : STEP_MS;
        code = rd_kafka_metadata(asking->rk, 0, topic, &metadata, wait_ms);
        rd_kafka_poll(asking->rk, 0); /* reports what is wrong, if it is known */
        if (asking->kafka.dead || (asking->kafka.noted && asking->kafka.error.cls == SEMEL_CLASS_BROKEN))
            break;
    }
    status = metadata != NULL ? read_metadata(metadata, ret, err) : no_answer(asking, code, err);
    if (metadata != NULL)
        rd_kafka_metadata_destroy(metadata);
    if (topic != NULL)
        rd_kafka_topic_destroy(topic);
    return status;
}

/* ---- questions: their settings ------------------------------------------------------------------------- */

static void read_entry(const rd_kafka_ConfigEntry_t *entry, struct semel_kafka_topic *ret)
{
    const char *name = rd_kafka_ConfigEntry_name(entry), *value = rd_kafka_ConfigEntry_value(entry);

    if (value == NULL)
        return;
    if (strcmp(name, "retention.ms") == 0) {
        (void)semel__str_int64(semel__str(value), &ret->retention_ms);
    } else if (strcmp(name, "retention.bytes") == 0) {
        (void)semel__str_int64(semel__str(value), &ret->retention_bytes);
    } else if (strcmp(name, "cleanup.policy") == 0) {
        ret->deletes = strstr(value, "delete") != NULL;
        ret->compacts = strstr(value, "compact") != NULL;
    }
}

/* A server that does not let us see the settings of a topic is no failure: they stay unknown. */
static void read_resource(const rd_kafka_ConfigResource_t *resource, struct semel_kafka_topic *topics, size_t n)
{
    const char *name = rd_kafka_ConfigResource_name(resource);
    const rd_kafka_ConfigEntry_t **entries;
    size_t n_entries = 0;

    if (rd_kafka_ConfigResource_error(resource) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    entries = rd_kafka_ConfigResource_configs(resource, &n_entries);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(topics[i].topic, name) != 0)
            continue;
        topics[i].visible = true;
        for (size_t j = 0; j < n_entries; j++)
            read_entry(entries[j], &topics[i]);
    }
}

static semel_status read_answer(struct asking *asking, rd_kafka_event_t *event, struct semel_kafka_topic *topics,
                                size_t n, struct semel_error *err)
{
    const rd_kafka_resp_err_t code = event != NULL ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    const rd_kafka_ConfigResource_t **resources;
    size_t n_resources = 0;

    if (code == RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED)
        return SEMEL_OK;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return no_answer(asking, code, err);
    resources = rd_kafka_DescribeConfigs_result_resources(rd_kafka_event_DescribeConfigs_result(event), &n_resources);
    for (size_t i = 0; i < n_resources; i++)
        read_resource(resources[i], topics, n);
    return SEMEL_OK;
}

static semel_status send_question(struct asking *asking, rd_kafka_ConfigResource_t **resources, size_t n_resources,
                                  struct semel_kafka_topic *topics, size_t n, struct semel_error *err)
{
    const int wait_ms = left_ms(asking) > 0 ? left_ms(asking) : 1;
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(asking->rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(asking->rk);
    rd_kafka_event_t *event;
    semel_status status;

    (void)rd_kafka_AdminOptions_set_request_timeout(options, wait_ms, NULL, 0);
    rd_kafka_DescribeConfigs(asking->rk, resources, n_resources, options, answers);
    event = rd_kafka_queue_poll(answers, wait_ms + STEP_MS); /* the library answers for a server that does not */
    status = read_answer(asking, event, topics, n, err);
    if (event != NULL)
        rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_AdminOptions_destroy(options);
    return status;
}

static semel_status ask_settings(struct asking *asking, struct semel_kafka_topic *topics, size_t n,
                                 struct semel_error *err)
{
    rd_kafka_ConfigResource_t **resources = semel__calloc(n, sizeof(rd_kafka_ConfigResource_t *));
    semel_status status = SEMEL_OK;
    size_t n_resources = 0;

    if (resources == NULL)
        return semel__fail_memory(err);
    for (size_t i = 0; i < n; i++)
        if (topics[i].exists)
            resources[n_resources++] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topics[i].topic);
    if (n_resources > 0)
        status = send_question(asking, resources, n_resources, topics, n, err);
    rd_kafka_ConfigResource_destroy_array(resources, n_resources);
    semel__free(resources);
    return status;
}

/* ---- questions ----------------------------------------------------------------------------------------- */

static semel_status ask_all(struct asking *asking, struct semel_kafka_topic *topics, size_t n, struct semel_error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(asking->kafka.reader);
    semel_status status = SEMEL_OK;
    char text[sizeof err->text];

    asking->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof text);
    if (asking->rk == NULL) {
        rd_kafka_conf_destroy(conf);
        return semel__kafka_refused(text, err);
    }
    for (size_t i = 0; status == SEMEL_OK && i < n; i++)
        status = ask_topic(asking, &topics[i], err);
    if (status == SEMEL_OK)
        status = ask_settings(asking, topics, n, err);
    rd_kafka_destroy_flags(asking->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return status;
}

semel_status semel__kafka_ask(const struct semel_kafka_options *options, int timeout_ms, struct semel_kafka_topic *ret,
                              struct semel_error *err)
{
    struct asking *asking = semel__calloc(1, sizeof *asking);
    semel_status status;

    if (asking == NULL)
        return semel__fail_memory(err);
    asking->timeout_ms = timeout_ms;
    asking->from_us = semel__steady_us();
    for (size_t i = 0; i < options->topics.n; i++)
        ret[i] = (struct semel_kafka_topic){.topic = options->topics.at[i].p,
                                            .retention_ms = SEMEL_NONE,
                                            .retention_bytes = SEMEL_NONE};
    status = semel__kafka_configure(&asking->kafka, options, err);
    if (status == SEMEL_OK && options->topics.n > 0)
        status = ask_all(asking, ret, options->topics.n, err);
    semel__kafka_unconfigure(&asking->kafka);
    semel__free(asking);
    return status;
}
