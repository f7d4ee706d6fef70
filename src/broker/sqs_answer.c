/* SPDX-License-Identifier: MIT
 *
 * sqs_answer.c: the answers of SQS, and of whoever speaks in its place, as structs.
 *
 * What is missing or of another type is refused where the driver could not work without it (a message without an id, a
 * receipt or a body, an entry that was not asked about) and not there where it could. What is unknown is passed over.
 *
 * Invariants: nothing is read past the bounds of the structs, whatever the answer holds; no text of an answer goes into
 * an error but a code, which is letters, and what SQS itself says of a refusal.
 */
#include "broker/sqs_private.h"

#include "base/digest.h"
#include "base/json_tree.h"

#define HANDLE_MAX 4096
#define DELIVERY_MAX 1000000000

static const struct semel_json_node *member(const struct semel_json_node *node, const char *name)
{
    if (node == NULL || node->tag != SEMEL_JSON_TAG_OBJECT)
        return NULL;
    for (node = node->u.first; node != NULL; node = node->next)
        if (semel__str_eqz(node->key, name))
            return node;
    return NULL;
}

/* The first element or member; NULL: it is none of that kind, or empty. */
static const struct semel_json_node *first_of(const struct semel_json_node *node, enum semel_json_tag tag)
{
    return node != NULL && node->tag == tag ? node->u.first : NULL;
}

static struct semel_str text_of(const struct semel_json_node *node)
{
    return node != NULL && node->tag == SEMEL_JSON_TAG_STRING ? node->u.text : (struct semel_str){NULL, 0};
}

static struct semel_str text_at(const struct semel_json_node *node, const char *name)
{
    return text_of(member(node, name));
}

static int64_t number_at(const struct semel_json_node *node, const char *name)
{
    int64_t number;

    return semel__str_int64(text_at(node, name), &number) && number >= 0 ? number : SEMEL_NONE;
}

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_ENVIRONMENT, "sqs: the answer is not SQS's: %s", what);
}

static semel_status parse(struct semel_json **ret, struct semel_str text, struct semel_error *err)
{
    struct semel_error why;
    const semel_status status = semel__json_parse(ret, text, SQS_ANSWER_MAX, &why);

    if (status == SEMEL_INVALID)
        return wrong(err, why.text);
    if (status != SEMEL_OK)
        return semel__fail_memory(err);
    if ((*ret)->root->tag == SEMEL_JSON_TAG_OBJECT)
        return SEMEL_OK;
    semel__json_free(*ret);
    return wrong(err, "it is JSON, but not an object");
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static void read_headers(const struct semel_json_node *attributes, struct sqs_message *m)
{
    const struct semel_json_node *one = first_of(attributes, SEMEL_JSON_TAG_OBJECT);

    for (; one != NULL && m->n_headers < SQS_HEADERS_MAX; one = one->next) {
        const struct semel_str type = text_at(one, "DataType"), value = text_at(one, "StringValue");
        const bool is_text = type.n >= 6 && (memcmp(type.p, "String", 6) == 0 || memcmp(type.p, "Number", 6) == 0);
        if (is_text && semel__str_given(value))
            m->headers[m->n_headers++] = (struct semel_pair){one->key, value};
    }
}

static struct semel_str short_text(struct semel_str s, size_t max)
{
    return s.n <= max ? s : (struct semel_str){NULL, 0};
}

static void read_system(const struct semel_json_node *attributes, struct sqs_message *m)
{
    const int64_t count = number_at(attributes, "ApproximateReceiveCount");

    m->delivery = count > 0 && count < DELIVERY_MAX ? (int)count : 0;
    m->group = short_text(text_at(attributes, "MessageGroupId"), SEMEL_ID_MAX);
    m->deduplication = short_text(text_at(attributes, "MessageDeduplicationId"), SEMEL_ID_MAX);
    m->sequence = short_text(text_at(attributes, "SequenceNumber"), SEMEL_ID_MAX);
    m->sent = short_text(text_at(attributes, "SentTimestamp"), SEMEL_ID_MAX);
}

static const char *read_message(const struct semel_json_node *node, struct sqs_message *m)
{
    const struct semel_str md5 = text_at(node, "MD5OfBody");
    char sum[33];

    *m = (struct sqs_message){.id = text_at(node, "MessageId"),
                              .handle = text_at(node, "ReceiptHandle"),
                              .body = text_at(node, "Body")};
    if (m->id.n == 0 || m->id.n > SEMEL_ID_MAX)
        return "a message has no MessageId, or one longer than 255 bytes";
    if (m->handle.n == 0 || m->handle.n > HANDLE_MAX)
        return "a message has no ReceiptHandle, or one longer than 4096 bytes";
    if (!semel__str_given(m->body))
        return "a message has no Body";
    read_system(member(node, "Attributes"), m);
    read_headers(member(node, "MessageAttributes"), m);
    /* An OpenSSL without MD5 leaves bodies unchecked. */
    m->damaged = semel__str_given(md5) && semel__md5_hex(m->body, sum) && !semel__str_eqz(md5, sum);
    return NULL;
}

static const char *read_all(const struct semel_json_node *root, struct sqs_batch *batch)
{
    const struct semel_json_node *list = member(root, "Messages"), *one;
    const char *why = NULL;

    if (list == NULL || list->tag == SEMEL_JSON_TAG_NULL)
        return NULL; /* SQS leaves it out when there are none */
    if (list->tag != SEMEL_JSON_TAG_ARRAY)
        return "Messages is not a list";
    for (one = list->u.first; one != NULL && why == NULL; one = one->next) {
        if (batch->n == SQS_BATCH)
            return "there are more than 10 messages in it";
        why = read_message(one, &batch->messages[batch->n++]);
    }
    return why;
}

semel_status semel__sqs_read_messages(struct semel_str text, struct sqs_batch **ret, struct semel_error *err)
{
    struct sqs_batch *batch = semel__calloc(1, sizeof *batch);
    semel_status status;
    const char *why;

    if (batch == NULL)
        return semel__fail_memory(err);
    status = parse(&batch->json, text, err);
    if (status != SEMEL_OK) {
        semel__free(batch);
        return status;
    }
    why = read_all(batch->json->root, batch);
    if (why != NULL) {
        semel__sqs_batch_free(batch);
        return wrong(err, why);
    }
    *ret = batch;
    return SEMEL_OK;
}

void semel__sqs_batch_free(struct sqs_batch *batch)
{
    if (batch != NULL)
        semel__json_free(batch->json);
    semel__free(batch);
}

/* ---- what became of each entry of a batch --------------------------------------------------------------- */

/* Entries are called "0" to "9" by us. false: this is none of them. */
static bool entry_of(const struct semel_json_node *node, size_t n, size_t *ret)
{
    int64_t id;

    if (!semel__str_int64(text_at(node, "Id"), &id) || id < 0 || (uint64_t)id >= n)
        return false;
    *ret = (size_t)id;
    return true;
}

/* Codes come with and without a prefix ("AWS.SimpleQueueService.", "com.amazonaws.sqs#"). */
static struct semel_str bare(struct semel_str code)
{
    for (size_t i = code.n; i > 0; i--)
        if (code.p[i - 1] == '.' || code.p[i - 1] == '#')
            return (struct semel_str){code.p + i, code.n - i};
    return code;
}

static bool is_one_of(struct semel_str code, const char *const *names)
{
    for (; *names != NULL; names++)
        if (semel__str_eqz(code, *names))
            return true;
    return false;
}

static enum sqs_outcome outcome_of(const struct semel_json_node *node, struct sqs_verdicts *verdicts)
{
    static const char *const gone[] = {"ReceiptHandleIsInvalid", "InvalidReceiptHandle",  "MessageNotInflight",
                                       "InvalidParameterValue",  "InvalidAttributeValue", NULL};
    static const char *const again[] = {"InternalError",       "InternalFailure", "RequestThrottled",   "OverLimit",
                                        "ThrottlingException", "KmsThrottled",    "ServiceUnavailable", NULL};
    const struct semel_json_node *fault = member(node, "SenderFault");
    const struct semel_str code = bare(text_at(node, "Code"));

    if (is_one_of(code, gone))
        return SQS_GONE;
    if (is_one_of(code, again) || (fault != NULL && fault->tag == SEMEL_JSON_TAG_FALSE))
        return SQS_AGAIN;
    semel__str_show(verdicts->code, sizeof verdicts->code, semel__str_given(code) ? code : SEMEL_STR("no code"));
    return SQS_REFUSED;
}

semel_status semel__sqs_read_verdicts(struct semel_str text, size_t n, struct sqs_verdicts *verdicts,
                                      struct semel_error *err)
{
    struct semel_json *json;
    semel_status status = parse(&json, text, err);
    const struct semel_json_node *one;
    size_t at;

    *verdicts = (struct sqs_verdicts){0};
    if (status != SEMEL_OK)
        return status;
    one = first_of(member(json->root, "Successful"), SEMEL_JSON_TAG_ARRAY);
    for (; one != NULL && status == SEMEL_OK; one = one->next) {
        if (!entry_of(one, n, &at)) {
            status = wrong(err, "it speaks of an entry that was not sent");
            break;
        }
        verdicts->at[at] = SQS_DONE;
        semel__str_show(verdicts->md5[at], sizeof verdicts->md5[at], text_at(one, "MD5OfMessageBody"));
    }
    one = first_of(member(json->root, "Failed"), SEMEL_JSON_TAG_ARRAY);
    for (; one != NULL && status == SEMEL_OK; one = one->next)
        if (entry_of(one, n, &at))
            verdicts->at[at] = outcome_of(one, verdicts);
        else
            status = wrong(err, "it speaks of an entry that was not sent");
    semel__json_free(json);
    return status;
}

/* ---- refusals and facts --------------------------------------------------------------------------------- */

void semel__sqs_read_error(struct semel_str text, char *code, size_t n_code, char *message, size_t n_message)
{
    struct semel_json *json;
    struct semel_str said;

    code[0] = message[0] = '\0';
    if (semel__json_parse(&json, text, SQS_ANSWER_MAX, NULL) != SEMEL_OK)
        return;
    said = text_at(json->root, "__type");
    if (!semel__str_given(said))
        said = text_at(json->root, "code");
    semel__str_show(code, n_code, semel__str_given(said) ? bare(said) : SEMEL_STR(""));
    said = text_at(json->root, "message");
    if (!semel__str_given(said))
        said = text_at(json->root, "Message");
    semel__str_show(message, n_message, semel__str_given(said) ? said : SEMEL_STR(""));
    semel__json_free(json);
}

static int64_t seconds_at(const struct semel_json_node *node, const char *name)
{
    const int64_t s = number_at(node, name);

    return s != SEMEL_NONE && s < INT64_MAX / SQS_SECOND_US ? s * SQS_SECOND_US : SEMEL_NONE;
}

/* {"deadLetterTargetArn":"arn:...","maxReceiveCount":"5"}, a document inside the document. */
static void read_redrive(struct semel_str policy, struct semel_sqs_facts *facts)
{
    const struct semel_json_node *count;
    struct semel_json *json;
    int64_t number;

    if (policy.n == 0 || semel__json_parse(&json, policy, SQS_ANSWER_MAX, NULL) != SEMEL_OK)
        return;
    count = member(json->root, "maxReceiveCount");
    if (count != NULL && (count->tag == SEMEL_JSON_TAG_INTEGER || count->tag == SEMEL_JSON_TAG_STRING) &&
        semel__str_int64(count->u.text, &number) && number > 0)
        facts->max_receives = number;
    if (semel__str_given(text_at(json->root, "deadLetterTargetArn")))
        semel__str_show(facts->dead_letters, sizeof facts->dead_letters, text_at(json->root, "deadLetterTargetArn"));
    semel__json_free(json);
}

semel_status semel__sqs_read_facts(struct semel_str text, struct semel_sqs_facts *ret, struct semel_error *err)
{
    struct semel_json *json;
    const semel_status status = parse(&json, text, err);
    const struct semel_json_node *about;

    if (status != SEMEL_OK)
        return status;
    about = member(json->root, "Attributes");
    *ret = (struct semel_sqs_facts){
        .fifo = semel__str_eqz(text_at(about, "FifoQueue"), "true"),
        .content_deduplication = semel__str_eqz(text_at(about, "ContentBasedDeduplication"), "true"),
        .retention_us = seconds_at(about, "MessageRetentionPeriod"),
        .visibility_us = seconds_at(about, "VisibilityTimeout"),
        .delay_us = seconds_at(about, "DelaySeconds"),
        .messages = number_at(about, "ApproximateNumberOfMessages"),
        .in_flight = number_at(about, "ApproximateNumberOfMessagesNotVisible"),
        .delayed = number_at(about, "ApproximateNumberOfMessagesDelayed"),
        .max_receives = SEMEL_NONE,
    };
    read_redrive(text_at(about, "RedrivePolicy"), ret);
    semel__json_free(json);
    return SEMEL_OK;
}
