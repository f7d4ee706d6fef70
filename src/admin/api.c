/* SPDX-License-Identifier: MIT
 *
 * api.c: requests of operators: the loop's thread queues them, the task parses and answers them; see api.h.
 */
#include "admin/api.h"

#include <stdio.h>

#include "admin/reconcile.h"
#include "base/error.h"
#include "base/json.h"
#include "base/wait.h"

#define ARENA_MAX ((size_t)256 << 20) /* a row may have a payload of 64 MiB; a list has 10,000 rows without theirs */
#define AFTER_S 1
#define RECONCILE_MS 10000
#define CONSUMERS 500
#define CONSUMERS_MAX 10000
#define WHO_MAX 100
#define LINK_MAX ((size_t)7 << 10) /* all lines of a head together may have 8 KiB */

struct call {
    struct call *next;
    struct semel_http_exchange *x;    /* NULL: it was answered while the other side was asked */
    struct semel_reconciling *asking; /* of a reconcile: it was asked, and comes again with the answer */
    struct call *next_asking;         /* under the lock */
    struct semel_api *api;
    pthread_t thread; /* that asks */
};

/* A bulk command. A finished one stays until its slot is needed, so that clients can read its result. */
struct run {
    struct semel_bulk *bulk; /* NULL: the slot is free */
    struct semel_ops ops;
    struct semel_arena arena;
    struct semel_selection selection;
    char who[SEMEL_ID_MAX + 1];
    int64_t next_us; /* when its next step is due; -1: it is over */
};

struct semel_api {
    struct semel_serve *serve;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct call *first, **last;
    size_t n;
    bool open;           /* a task serves it */
    struct call *asking; /* reconciles that are not over */
    size_t n_asking;     /* those of them whose thread waits for the other side */
    /* Used by the task. */
    bool lost; /* the store's connection */
    struct semel_arena arena;
    struct run runs[SEMEL_API_RUNS];
};

/* ---- the queue ------------------------------------------------------------------------------------- */

struct semel_api *semel__api_new(struct semel_serve *serve)
{
    struct semel_api *api = semel__calloc(1, sizeof *api);
    if (api == NULL || !semel__cond_init(&api->changed)) {
        semel__free(api);
        return NULL;
    }
    pthread_mutex_init(&api->lock, NULL);
    semel__arena_init(&api->arena, ARENA_MAX);
    api->serve = serve;
    api->last = &api->first;
    return api;
}

static void put(struct semel_api *api, struct call *call)
{
    call->next = NULL;
    *api->last = call;
    api->last = &call->next;
    api->n++;
}

/* Removes the call at *at; NULL: there is none. */
static struct call *pop(struct semel_api *api, struct call **at)
{
    struct call *call = *at;
    if (call == NULL)
        return NULL;
    *at = call->next;
    if (call->next == NULL)
        api->last = at;
    api->n--;
    return call;
}

/* The thread of a reconcile has ended, or is about to: it has queued its call. */
static void call_free(struct semel_api *api, struct call *call)
{
    if (call->asking != NULL) {
        pthread_join(call->thread, NULL);
        struct call **at = &api->asking;
        while (*at != call)
            at = &(*at)->next_asking;
        *at = call->next_asking;
        semel__reconcile_free(call->asking);
    }
    semel__free(call);
}

static void refuse_all(struct semel_api *api, const char *why)
{
    struct call *call;
    while ((call = pop(api, &api->first)) != NULL) {
        if (call->x != NULL)
            semel__endpoint_later(call->x, AFTER_S, why);
        call_free(api, call);
    }
}

static void run_close(struct run *run)
{
    if (run->bulk == NULL)
        return;
    semel__bulk_close(run->bulk);
    semel__ops_done(&run->ops);
    semel__arena_done(&run->arena);
    run->bulk = NULL;
}

struct semel_api *semel__serve_api(struct semel_serve *serve)
{
    struct semel_api *api = serve != NULL ? serve->api : NULL;
    if (api == NULL)
        return NULL;
    pthread_mutex_lock(&api->lock);
    api->open = true;
    pthread_mutex_unlock(&api->lock);
    return api;
}

void semel__api_refuse(struct semel_api *api, const char *why)
{
    pthread_mutex_lock(&api->lock);
    refuse_all(api, why);
    pthread_mutex_unlock(&api->lock);
}

void semel__api_close(struct semel_api *api)
{
    if (api == NULL)
        return;
    pthread_mutex_lock(&api->lock);
    api->open = false;
    for (struct call *call = api->asking; call != NULL; call = call->next_asking)
        semel__reconcile_cancel(call->asking);
    while (api->n_asking > 0)
        (void)semel__cond_wait(&api->changed, &api->lock, semel__steady_us() + 1000000);
    refuse_all(api, "the process is stopping");
    pthread_mutex_unlock(&api->lock);
    for (size_t i = 0; i < SEMEL_API_RUNS; i++)
        run_close(&api->runs[i]);
}

void semel__api_free(struct semel_api *api)
{
    if (api == NULL)
        return;
    semel__api_close(api);
    semel__arena_done(&api->arena);
    pthread_cond_destroy(&api->changed);
    pthread_mutex_destroy(&api->lock);
    semel__free(api);
}

static void enter(void *ctx, struct semel_http_exchange *x)
{
    struct semel_api *api = ctx;
    const char *why = NULL;
    struct call *call = semel__calloc(1, sizeof *call);
    if (call == NULL) {
        semel__http_refuse(x, 503, "out of memory");
        return;
    }
    call->x = x;
    pthread_mutex_lock(&api->lock);
    if (!api->open)
        why = "the API is not available at the moment";
    else if (api->n >= SEMEL_API_CALLS)
        why = "too many requests wait";
    if (why == NULL) {
        put(api, call);
        pthread_cond_signal(&api->changed);
    }
    pthread_mutex_unlock(&api->lock);
    if (why == NULL)
        return;
    semel__free(call);
    semel__endpoint_later(x, AFTER_S, why);
}

static void overdue(void *ctx, struct semel_http_exchange *x)
{
    struct semel_api *api = ctx;
    pthread_mutex_lock(&api->lock);
    struct call **at = &api->first, *call;
    while (*at != NULL && (*at)->x != x)
        at = &(*at)->next;
    if (*at != NULL && (*at)->asking != NULL) {
        (*at)->x = NULL; /* the task frees it */
        semel__endpoint_later(x, AFTER_S, "the store is too busy");
    } else if ((call = pop(api, at)) != NULL) {
        semel__endpoint_later(x, AFTER_S, "the store is too busy");
        semel__free(call);
    }
    pthread_mutex_unlock(&api->lock);
}

/* ---- one request ----------------------------------------------------------------------------------- */

struct task {
    struct semel_api *api;
    struct semel_ops *ops;
    struct semel_http_exchange *x;
    const struct semel_http_request *req;
    char who[SEMEL_ID_MAX + 1];
};

/* A failed store may be available again later; a wrong request stays wrong. */
static void fail(struct task *t, semel_status status, const struct semel_error *err)
{
    t->api->lost |= status == SEMEL_CLOSED || status == SEMEL_UNKNOWN;
    switch (status) {
    case SEMEL_OK:
    case SEMEL_INVALID:
        if (err->cls == SEMEL_CLASS_BROKEN || err->cls == SEMEL_CLASS_ENVIRONMENT)
            semel__http_refuse(t->x, 500, "%s", err->text);
        else
            semel__http_refuse(t->x, err->cls == SEMEL_CLASS_REJECTED ? 409 : 400, "%s", err->text);
        return;
    case SEMEL_RETRY:
    case SEMEL_CLOSED:
        semel__endpoint_later(t->x, AFTER_S, err->text);
        return;
    case SEMEL_UNKNOWN:
    case SEMEL_FENCED:
        semel__http_refuse(t->x, 500, "the result is unknown, check again: %s", err->text);
        return;
    }
}

static struct semel_str param(const struct task *t, const char *name)
{
    return semel__http_param(t->req, name);
}

/* Only these names may be in the query, ended by NULL; each at most once. true: the request was answered. */
static bool bad_query(struct task *t, const char *const *names)
{
    for (size_t i = 0; i < t->req->n_query; i++) {
        struct semel_str name = t->req->query[i].name;
        char shown[64];
        bool known = false, twice = false;
        for (size_t k = 0; names[k] != NULL; k++)
            known |= semel__str_eqz(name, names[k]);
        for (size_t k = 0; k < i; k++)
            twice |= semel__str_eq(name, t->req->query[k].name);
        if (known && !twice)
            continue;
        semel__str_show(shown, sizeof shown, name);
        semel__http_refuse(t->x, 400, twice ? "%s is given twice" : "%s is no option here", shown);
        return true;
    }
    return false;
}

static void put_percent(struct semel_buf *buf, struct semel_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c != '\0' && strchr("-._~", c) != NULL);
        semel__buf_addf(buf, plain ? "%c" : "%%%02X", c);
    }
}

/* Link: the same request with another `after`. false: the query is too long for that. */
static bool set_next(struct task *t, const char *path, struct semel_str after)
{
    struct semel_buf link;
    semel__buf_init(&link, LINK_MAX);
    semel__buf_addf(&link, "<%s?", path);
    for (size_t i = 0; i < t->req->n_query; i++) {
        if (semel__str_eqz(t->req->query[i].name, "after"))
            continue;
        put_percent(&link, t->req->query[i].name);
        semel__buf_addz(&link, "=");
        put_percent(&link, t->req->query[i].value);
        semel__buf_addz(&link, "&");
    }
    semel__buf_addz(&link, "after=");
    put_percent(&link, after);
    semel__buf_addz(&link, ">; rel=\"next\"");
    const bool fits = !link.failed;
    if (fits)
        semel__http_set_header(t->x, "Link", semel__buf_str(&link));
    semel__buf_done(&link);
    return fits;
}

/* The query as options, as many as it has. NULL: no memory, which err says. */
static struct semel_option *query_options(struct task *t, struct semel_error *err)
{
    size_t n = t->req->n_query;
    struct semel_option *options = semel__arena_alloc(t->ops->arena, n + 1, sizeof *options);
    if (options == NULL)
        (void)semel__fail_memory(err);
    for (size_t i = 0; options != NULL && i < n; i++)
        options[i] = (struct semel_option){t->req->query[i].name, t->req->query[i].value};
    return options;
}

static semel_status read_query(struct task *t, struct semel_query *ret, struct semel_error *err)
{
    const struct semel_option *options = query_options(t, err);
    return options != NULL ? semel__ops_query(options, t->req->n_query, semel__now(&semel__clock_real), ret, err)
                           : SEMEL_RETRY;
}

/* ---- bodies ---------------------------------------------------------------------------------------- */

enum kind { TEXT, FLAG, NUMBER, SPAN, RAW, OPTIONS };

struct member {
    const char *name;
    enum kind kind;
    void *at; /* semel_str, bool, int64_t; OPTIONS: struct options */
};

struct options {
    struct semel_option *at;
    size_t n;
};

static semel_status wrong(struct semel_error *err, const char *name, const char *right)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s must be %s", name, right);
}

/* Decodes a string; the body was parsed before, so only memory can fail. */
static semel_status read_text(struct task *t, struct semel_str raw, const char *name, struct semel_str *ret,
                              struct semel_error *err)
{
    bool sound;
    if (raw.n == 0 || raw.p[0] != '"')
        return wrong(err, name, "a string");
    return semel__json_decode(raw, t->ops->arena, ret, &sound) ? SEMEL_OK : semel__fail_memory(err);
}

static semel_status read_flag(struct semel_str raw, const char *name, bool *ret, struct semel_error *err)
{
    *ret = semel__str_eqz(raw, "true");
    return *ret || semel__str_eqz(raw, "false") ? SEMEL_OK : wrong(err, name, "true or false");
}

/* An object of strings, and true or false, as options. */
static semel_status read_options(struct task *t, struct semel_str raw, struct options *ret, struct semel_error *err)
{
    struct semel_str name, value;
    size_t at = 0, n = 0;
    if (raw.n == 0 || raw.p[0] != '{')
        return wrong(err, "filter", "an object");
    while (semel__json_next(raw, &at, &name, &value))
        n++;
    ret->at = semel__arena_alloc(t->ops->arena, n + 1, sizeof *ret->at);
    if (ret->at == NULL)
        return semel__fail_memory(err);
    at = 0;
    semel_status status = SEMEL_OK;
    while (status == SEMEL_OK && semel__json_next(raw, &at, &name, &value)) {
        struct semel_option *option = &ret->at[ret->n++];
        *option = (struct semel_option){name, value};
        if (!semel__str_eqz(value, "true") && !semel__str_eqz(value, "false"))
            status = read_text(t, value, "a member of filter", &option->value, err);
    }
    return status;
}

static semel_status read_member(struct task *t, const struct member *m, struct semel_str raw, struct semel_error *err)
{
    struct semel_str text = {0};
    semel_status status = SEMEL_OK;
    switch (m->kind) {
    case TEXT:
        return read_text(t, raw, m->name, m->at, err);
    case FLAG:
        return read_flag(raw, m->name, m->at, err);
    case NUMBER:
        return semel__str_int64(raw, m->at) && *(int64_t *)m->at >= 0 && *(int64_t *)m->at <= SEMEL_BULK_RATE_MAX
                   ? SEMEL_OK
                   : wrong(err, m->name, "a whole number from 0 to 100000");
    case SPAN:
        status = read_text(t, raw, m->name, &text, err);
        if (status != SEMEL_OK)
            return status;
        return semel__duration_parse(text, m->at) ? SEMEL_OK : wrong(err, m->name, "a duration such as 90s or 15m");
    case RAW:
        *(struct semel_str *)m->at = raw;
        return SEMEL_OK;
    case OPTIONS:
        return read_options(t, raw, m->at, err);
    }
    return SEMEL_OK;
}

/* A body of these members, any of which may be missing; no body is an empty one. */
static semel_status read_body(struct task *t, const struct member *members, size_t n, struct semel_error *err)
{
    struct semel_json *json = NULL;
    struct semel_str body = t->req->body, name, raw;
    char shown[64];
    size_t at = 0, first = 0;
    if (body.n == 0)
        return SEMEL_OK;
    semel_status status = semel__json_parse(&json, body, SEMEL_API_BODY_MAX, err);
    semel__json_free(json);
    if (status != SEMEL_OK)
        return status;
    while (first < body.n && body.p[first] != '{' && strchr(" \t\r\n", body.p[first]) != NULL)
        first++;
    if (first == body.n || body.p[first] != '{')
        return wrong(err, "the body", "a JSON object");
    while (status == SEMEL_OK && semel__json_next(body, &at, &name, &raw)) {
        size_t i = 0;
        while (i < n && !semel__str_eqz(name, members[i].name))
            i++;
        semel__str_show(shown, sizeof shown, name);
        if (i == n)
            return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "%s is no member that is known here", shown);
        status = read_member(t, &members[i], raw, err);
    }
    return status;
}

/* "http@127.0.0.1", or "mara, http@127.0.0.1": the name and the address. */
static semel_status set_who(struct task *t, struct semel_str given, struct semel_error *err)
{
    struct semel_str from = t->req->remote;
    size_t n = from.n;
    while (n > 0 && from.p[n - 1] != ':')
        n--;
    from.n = n > 0 ? n - 1 : from.n; /* without its port */
    if (semel__str_given(given) && (given.n == 0 || given.n > WHO_MAX))
        return wrong(err, "who", "text of 1 to 100 bytes");
    semel_status status = semel__str_given(given) ? semel__id_check("who", given, 1, err) : SEMEL_OK;
    snprintf(t->who, sizeof t->who, "%.*s%shttp@%.*s", (int)given.n, given.n > 0 ? given.p : "",
             given.n > 0 ? ", " : "", (int)(from.n < 100 ? from.n : 100), from.p);
    t->ops->who = semel__str(t->who);
    return status;
}

static void answer(struct task *t, int status)
{
    semel__http_answer(t->x, status);
}

/* ---- reading --------------------------------------------------------------------------------------- */

static void get_list(struct task *t)
{
    struct semel_query query;
    struct semel_list list;
    struct semel_error err = {0};
    char text[64];
    semel_status status = read_query(t, &query, &err);
    if (status == SEMEL_OK)
        status = semel__ops_list(t->ops, &query, &list, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    snprintf(text, sizeof text, "%lld", list.n > 0 ? (long long)list.rows[list.n - 1].arrival : 0);
    if (list.more && !set_next(t, "/v1/inbox", semel__str(text))) {
        semel__http_refuse(t->x, 400, "the query is too long for a list of several pages");
        return;
    }
    semel__ops_json_list(semel__http_body(t->x), &list);
    snprintf(text, sizeof text, "%zu", list.damaged);
    if (list.damaged > 0)
        semel__http_set_header(t->x, "Semel-Damaged", semel__str(text));
    answer(t, 200);
}

static void get_groups(struct task *t)
{
    struct semel_query query;
    struct semel_groups groups;
    struct semel_error err = {0};
    semel_status status = read_query(t, &query, &err);
    if (status == SEMEL_OK)
        status = semel__ops_groups(t->ops, &query, &groups, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    semel__ops_json_groups(semel__http_body(t->x), &groups);
    if (groups.capped)
        semel__http_set_header(t->x, "Semel-Capped", SEMEL_STR("true"));
    answer(t, 200);
}

static void report_none(struct task *t, struct semel_str source)
{
    struct semel_buf text;
    semel__buf_init(&text, SEMEL_EXPLAIN_MAX);
    semel__buf_addz(&text, "there is no such message");
    size_t at = text.n;
    semel__buf_addz(&text, "; ");
    if (!semel__ops_purged(t->ops, param(t, "consumer"), source, param(t, "id"), &text))
        text.n = at < text.n ? at : text.n;
    semel__http_refuse(t->x, 404, "%.*s", (int)text.n, text.p != NULL ? text.p : "");
    semel__buf_done(&text);
}

static void report_damaged(struct task *t, struct semel_str source)
{
    struct semel_buf why, next;
    semel__buf_init(&why, SEMEL_EXPLAIN_MAX);
    semel__buf_init(&next, SEMEL_EXPLAIN_MAX);
    semel__ops_damage(t->ops, param(t, "consumer"), source, param(t, "id"), &why, &next);
    semel__http_refuse(t->x, 500, "%.*s %.*s", (int)why.n, why.p != NULL ? why.p : "", (int)next.n,
                       next.p != NULL ? next.p : "");
    semel__buf_done(&why);
    semel__buf_done(&next);
}

/* The message of the path; NULL: the request was answered. */
static struct semel_row *find(struct task *t, bool with_payload)
{
    static const char *const names[] = {"source", NULL};
    struct semel_str source = semel__http_query(t->req, "source");
    struct semel_error err = {0};
    struct semel_find found;
    if (bad_query(t, names))
        return NULL;
    semel_status status = semel__ops_find(t->ops, param(t, "consumer"), source, param(t, "id"), with_payload, &found,
                                          &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return NULL;
    }
    switch (found.found) {
    case SEMEL_FOUND:
        return found.rows;
    case SEMEL_FOUND_NONE:
        report_none(t, source);
        break;
    case SEMEL_FOUND_SEVERAL:
        semel__http_refuse(t->x, 409, "it is the id of %zu messages of this consumer: add ?source=", found.n);
        break;
    case SEMEL_FOUND_DAMAGED:
        report_damaged(t, source);
        break;
    }
    return NULL;
}

static void get_message(struct task *t)
{
    struct semel_ops_facts facts;
    struct semel_error err = {0};
    const struct semel_row *row = find(t, true);
    if (row == NULL)
        return;
    semel_status status = semel__ops_facts(t->ops, row, &facts, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    semel__ops_json_message(semel__http_body(t->x), &facts);
    answer(t, 200);
}

static void get_payload(struct task *t)
{
    const struct semel_row *row = find(t, true);
    if (row == NULL)
        return;
    if (!row->kept) {
        semel__http_refuse(t->x, 404, "the payload of this message was not kept");
        return;
    }
    semel__http_set_type(t->x, "application/octet-stream");
    semel__buf_add(semel__http_body(t->x), row->payload.p, row->payload.n);
    answer(t, 200);
}

/* ---- one command ----------------------------------------------------------------------------------- */

static int answer_status(const struct semel_answer *a)
{
    if (a->kind == SEMEL_DID || a->kind == SEMEL_WOULD)
        return 200;
    return a->judged == SEMEL_JUDGED_NO_SUCH_MESSAGE ? 404 : 409;
}

static void command(struct task *t, enum semel_command_kind kind)
{
    struct semel_instruction given = {.kind = kind};
    struct semel_str who = {0};
    struct semel_error err = {0};
    struct semel_report report;
    bool dry = false;
    const struct member members[] = {{"reason", TEXT, &given.reason},
                                     {"dry_run", FLAG, &dry},
                                     {"who", TEXT, &who},
                                     {kind == SEMEL_COMMAND_RETRY ? "force" : "outcome",
                                      kind == SEMEL_COMMAND_RETRY ? FLAG : RAW,
                                      kind == SEMEL_COMMAND_RETRY ? (void *)&given.force : (void *)&given.outcome},
                                     {"payload", RAW, &given.payload}};
    static const size_t n_members[] = {5, 3, 4};
    semel_status status = read_body(t, members, n_members[kind], &err);
    if (status == SEMEL_OK)
        status = set_who(t, who, &err);
    if (semel__str_given(given.payload))
        given.kind = SEMEL_COMMAND_CORRECT;
    if (status == SEMEL_OK && semel__str_eqz(given.payload, "null")) {
        semel__http_refuse(t->x, 400, "payload is null: leave it out to retry the message as it is, or send \"null\"");
        return;
    }
    if (status == SEMEL_OK && given.payload.n > 0 && given.payload.p[0] == '"') /* else it is the JSON that it is */
        status = read_text(t, given.payload, "payload", &given.payload, &err);
    if (status == SEMEL_OK && semel__ops_check(&given, dry, &err) != SEMEL_OK) {
        semel__http_refuse(t->x, 400, "%s", err.text);
        return;
    }
    if (status == SEMEL_OK && (report.row = find(t, given.kind == SEMEL_COMMAND_CORRECT)) == NULL)
        return;
    if (status == SEMEL_OK)
        status = semel__ops_command(t->ops, &given, report.row, dry, &report.answer, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    semel__ops_json_answer(semel__http_body(t->x), &report);
    answer(t, answer_status(&report.answer));
}

static void post_retry(struct task *t)
{
    command(t, SEMEL_COMMAND_RETRY);
}

static void post_discard(struct task *t)
{
    command(t, SEMEL_COMMAND_DISCARD);
}

static void post_resolve(struct task *t)
{
    command(t, SEMEL_COMMAND_RESOLVE);
}

/* ---- the outbox ------------------------------------------------------------------------------------ */

static void get_events(struct task *t)
{
    struct semel_event_query query;
    struct semel_events events = {0};
    struct semel_error err = {0};
    const struct semel_option *options = query_options(t, &err);
    char text[64];
    semel_status status = options != NULL ? semel__ops_event_query(options, t->req->n_query, &query, &err)
                                          : SEMEL_RETRY;
    if (status == SEMEL_OK)
        status = semel__ops_events(t->ops, &query, &events, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    snprintf(text, sizeof text, "%lld", events.n > 0 ? (long long)events.rows[events.n - 1].seq : 0);
    if (events.more && !set_next(t, "/v1/outbox", semel__str(text))) {
        semel__http_refuse(t->x, 400, "the query is too long for a list of several pages");
        return;
    }
    semel__ops_json_events(semel__http_body(t->x), &events);
    answer(t, 200);
}

static void get_event(struct task *t)
{
    struct semel_event_facts facts;
    struct semel_error err = {0};
    semel_status status = semel__ops_event(t->ops, param(t, "id"), &facts, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    if (facts.row == NULL) {
        semel__http_refuse(t->x, 404, "there is no such event: it was published or discarded, or never was");
        return;
    }
    semel__ops_json_event(semel__http_body(t->x), &facts);
    answer(t, 200);
}

static int event_status(const struct semel_event_answer *a)
{
    if (a->kind == SEMEL_DID || a->kind == SEMEL_WOULD)
        return 200;
    return a->judged == SEMEL_EVENT_NO_SUCH ? 404 : 409;
}

static void command_event(struct task *t, enum semel_command_kind kind)
{
    struct semel_instruction given = {.kind = kind};
    struct semel_event_answer report;
    struct semel_str who = {0};
    struct semel_error err = {0};
    bool dry = false;
    const struct member members[] = {{"reason", TEXT, &given.reason}, {"dry_run", FLAG, &dry}, {"who", TEXT, &who}};
    semel_status status = read_body(t, members, 3, &err);
    if (status == SEMEL_OK)
        status = set_who(t, who, &err);
    if (status == SEMEL_OK && semel__ops_check(&given, dry, &err) != SEMEL_OK) {
        semel__http_refuse(t->x, 400, "%s", err.text);
        return;
    }
    if (status == SEMEL_OK)
        status = semel__ops_event_command(t->ops, &given, param(t, "id"), dry, &report, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    semel__ops_json_event_answer(semel__http_body(t->x), &report);
    answer(t, event_status(&report));
}

static void post_event_retry(struct task *t)
{
    command_event(t, SEMEL_COMMAND_RETRY);
}

static void post_event_discard(struct task *t)
{
    command_event(t, SEMEL_COMMAND_DISCARD);
}

/* ---- idempotency keys ------------------------------------------------------------------------------ */

static void get_keys(struct task *t)
{
    struct semel_key_query query;
    struct semel_key_list list = {0};
    struct semel_error err = {0};
    const struct semel_option *options = query_options(t, &err);
    semel_status status = options != NULL ? semel__ops_key_query(options, t->req->n_query,
                                                                 semel__now(&semel__clock_real), &query, &err)
                                          : SEMEL_RETRY;
    if (status == SEMEL_OK)
        status = semel__ops_keys(t->ops, &query, &list, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    if (list.more && !set_next(t, "/v1/keys", semel__str(list.after))) {
        semel__http_refuse(t->x, 400, "the query is too long for a list of several pages");
        return;
    }
    semel__ops_json_keys(semel__http_body(t->x), &list);
    answer(t, 200);
}

/* The key of the path. false: the request was answered. */
static bool find_key(struct task *t, bool with_answer, struct semel_key_facts *ret)
{
    struct semel_error err = {0};
    semel_status status = semel__ops_key(t->ops, param(t, "scope"), param(t, "key"), with_answer, ret, &err);
    if (status != SEMEL_OK)
        fail(t, status, &err);
    else if (ret->row == NULL)
        semel__http_refuse(t->x, 404, "there is no such key: it was released, its lifetime is over, or it never was");
    return status == SEMEL_OK && ret->row != NULL;
}

static void get_key(struct task *t)
{
    static const char *const names[] = {"headers", NULL};
    struct semel_str given = semel__http_query(t->req, "headers");
    struct semel_key_facts facts;
    struct semel_error err = {0};
    bool headers = false;
    if (bad_query(t, names))
        return;
    if (semel__str_given(given) && read_flag(given, "headers", &headers, &err) != SEMEL_OK) {
        fail(t, SEMEL_INVALID, &err);
        return;
    }
    if (!find_key(t, headers, &facts))
        return;
    semel__ops_json_key(semel__http_body(t->x), &facts);
    answer(t, 200);
}

static void get_key_body(struct task *t)
{
    struct semel_key_facts facts;
    if (!find_key(t, true, &facts))
        return;
    if (facts.row->bytes == SEMEL_NONE) {
        semel__http_refuse(t->x, 404, "this key has no answer yet, or the body of its answer is not kept");
        return;
    }
    semel__http_set_type(t->x, "application/octet-stream");
    semel__buf_add(semel__http_body(t->x), facts.row->row.body.p, facts.row->row.body.n);
    answer(t, 200);
}

static void answer_report(struct task *t, const struct semel_key_report *report)
{
    const bool done = report->kind == SEMEL_DID || report->kind == SEMEL_WOULD;
    semel__ops_json_key_report(semel__http_body(t->x), report);
    answer(t, done ? 200 : report->judged == SEMEL_KEY_NO_SUCH ? 404 : 409);
}

static void command_key(struct task *t, enum semel_command_kind kind)
{
    struct semel_key_instruction given = {.kind = kind, .code = SEMEL_NONE, .token = SEMEL_NONE};
    struct semel_key_report report;
    struct semel_str who = {0};
    struct semel_error err = {0};
    bool dry = false;
    const struct member members[] = {
        {"reason", TEXT, &given.reason},     {"dry_run", FLAG, &dry},       {"who", TEXT, &who},
        {"force", FLAG, &given.force},       {"code", NUMBER, &given.code}, {"headers", RAW, &given.headers},
        {"not_done", FLAG, &given.not_done}, {"body", TEXT, &given.body}};
    semel_status status = read_body(t, members, kind == SEMEL_COMMAND_DISCARD ? 4 : 8, &err);
    if (status == SEMEL_OK)
        status = set_who(t, who, &err);
    if (status == SEMEL_OK && semel__ops_key_check(&given, dry, &err) != SEMEL_OK) {
        semel__http_refuse(t->x, 400, "%s", err.text);
        return;
    }
    if (status == SEMEL_OK)
        status = semel__ops_key_command(t->ops, &given, param(t, "scope"), param(t, "key"), dry, &report, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    answer_report(t, &report);
}

static void post_key_resolve(struct task *t)
{
    command_key(t, SEMEL_COMMAND_RESOLVE);
}

static void post_key_discard(struct task *t)
{
    command_key(t, SEMEL_COMMAND_DISCARD);
}

/* ---- reconciles ------------------------------------------------------------------------------------ */

/* As `semel inbox reconcile --json` prints it. */
static void answer_asked(struct task *t, const struct semel_asked *one, int code)
{
    const struct semel_reconcile_sum sum = {.found = 1, .known = one->known, .unknown = !one->known};
    struct semel_buf messages;
    semel__buf_init(&messages, SEMEL_API_BODY_MAX);
    semel__ops_json_asked(&messages, one);
    semel__ops_json_reconcile(semel__http_body(t->x), &sum, semel__buf_str(&messages));
    semel__buf_done(&messages);
    answer(t, one->known ? 200 : code);
}

static void answer_reconcile(struct task *t, semel_status status, const struct semel_reconcile *found,
                             const struct semel_error *err)
{
    static const int codes[] = {
        [SEMEL_RECONCILE_ASKED] = 502,   [SEMEL_RECONCILE_EARLY] = 409,     [SEMEL_RECONCILE_NO_SUCH] = 404,
        [SEMEL_RECONCILE_REFUSED] = 409, [SEMEL_RECONCILE_NO_ANSWER] = 502,
    };
    if (status != SEMEL_OK)
        fail(t, status, err);
    else if (found->end == SEMEL_RECONCILE_REPORTED)
        answer_report(t, &found->report);
    else if (found->end == SEMEL_RECONCILE_ASKED || found->end == SEMEL_RECONCILE_EARLY)
        answer_asked(t, &found->message, codes[found->end]);
    else
        semel__http_refuse(t->x, codes[found->end], "%s", found->text);
}

/* The other side may take seconds: a thread waits for it, and the task serves others meanwhile. */
static void *ask_aside(void *arg)
{
    struct call *call = arg;
    struct semel_api *api = call->api;
    semel__reconcile_ask(call->asking);
    pthread_mutex_lock(&api->lock);
    put(api, call);
    api->n_asking--;
    pthread_cond_signal(&api->changed);
    pthread_mutex_unlock(&api->lock);
    return NULL;
}

/* Takes over what is asked; false: it was freed. */
static bool start_asking(struct task *t, struct semel_reconciling *asking)
{
    struct semel_api *api = t->api;
    struct call *call = semel__calloc(1, sizeof *call);
    pthread_mutex_lock(&api->lock);
    bool started = call != NULL && api->n_asking < SEMEL_API_ASKING;
    if (started) {
        *call = (struct call){.x = t->x, .asking = asking, .next_asking = api->asking, .api = api};
        started = pthread_create(&call->thread, NULL, ask_aside, call) == 0;
    }
    if (started) {
        api->asking = call;
        api->n_asking++;
    }
    pthread_mutex_unlock(&api->lock);
    if (!started) {
        semel__reconcile_free(asking);
        semel__free(call);
    }
    return started;
}

/* A message is ended with the words of the other side, so that only a key needs a reason. */
static semel_status read_reconcile(struct task *t, struct semel_str *reason, struct semel_error *err)
{
    const bool key = semel__str_given(param(t, "key"));
    struct semel_str who = {0};
    const struct member members[] = {{"who", TEXT, &who}, {"reason", TEXT, reason}};
    semel_status status = read_body(t, members, key ? 2 : 1, err);
    if (status == SEMEL_OK)
        status = set_who(t, who, err);
    return status == SEMEL_OK && key && reason->n == 0 ? wrong(err, "reason", "given (goes to the audit log)") : status;
}

static void begin_reconcile(struct task *t, const struct semel_reconcile_about *about)
{
    struct semel_reconciling *asking = NULL;
    struct semel_reconcile found = {0};
    struct semel_error err = {0};
    semel_status status = semel__reconcile_begin(t->ops, t->api->serve->conf, about, RECONCILE_MS, &asking, &found,
                                                 &err);
    if (status != SEMEL_OK || asking == NULL)
        answer_reconcile(t, status, &found, &err);
    else if (!start_asking(t, asking))
        semel__endpoint_later(t->x, AFTER_S, "too many reconciles run");
}

static void post_reconcile(struct task *t)
{
    struct semel_reconcile_about about = {.scope = param(t, "scope"), .key = param(t, "key")};
    struct semel_str reason = {0};
    struct semel_error err = {0};
    semel_status status = read_reconcile(t, &reason, &err);
    if (status != SEMEL_OK)
        fail(t, status, &err);
    else if (semel__str_given(about.key) || (about.row = find(t, true)) != NULL)
        begin_reconcile(t, &about);
}

/* The other side has answered, or has not. */
static void end_reconcile(struct task *t, const struct semel_reconciling *asking)
{
    struct semel_str reason = {0};
    struct semel_reconcile found = {0};
    struct semel_error err = {0};
    semel_status status = read_reconcile(t, &reason, &err);
    if (status == SEMEL_OK)
        status = semel__reconcile_end(t->ops, asking, reason, &found, &err);
    answer_reconcile(t, status, &found, &err);
}

/* ---- in bulk --------------------------------------------------------------------------------------- */

static struct run *run_of(struct semel_api *api, int64_t number)
{
    for (size_t i = 0; i < SEMEL_API_RUNS; i++)
        if (api->runs[i].bulk != NULL && api->runs[i].selection.number == number)
            return &api->runs[i];
    return NULL;
}

/* A free slot, else that of a finished command. NULL: all of them run. */
static struct run *run_place(struct semel_api *api)
{
    struct run *over = NULL;
    for (size_t i = 0; i < SEMEL_API_RUNS; i++) {
        if (api->runs[i].bulk == NULL)
            return &api->runs[i];
        if (api->runs[i].next_us < 0)
            over = &api->runs[i];
    }
    return over;
}

/* From now on the task works through the selection, one chunk per step. */
static semel_status run_start(struct task *t, struct run *run, const struct semel_selection *selection,
                              const struct semel_bulk_options *options, struct semel_error *err)
{
    run_close(run);
    semel__arena_init(&run->arena, (size_t)16 << 20);
    snprintf(run->who, sizeof run->who, "%s", t->who);
    run->selection = *selection;
    semel_status status = semel__ops_init(&run->ops, t->ops->store, &run->arena, semel__str(run->who), err);
    if (status == SEMEL_OK)
        status = semel__bulk_open(&run->bulk, &run->ops, selection, options, err);
    run->next_us = semel__steady_us();
    if (status != SEMEL_OK) {
        semel__ops_done(&run->ops);
        semel__arena_done(&run->arena);
    }
    return status;
}

/* The progress, including what only this process knows. */
static void answer_selection(struct task *t, int64_t number, int code)
{
    const struct run *run = run_of(t->api, number);
    struct semel_selection now;
    struct semel_error err = {0};
    bool found = false;
    semel_status status = semel__bulk_find(t->ops, number, &now, &found, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    if (!found) {
        semel__http_refuse(t->x, 404, "there is no selection %lld", (long long)number);
        return;
    }
    semel__ops_json_selection(semel__http_body(t->x), &now, run != NULL ? run->bulk : NULL, NULL);
    answer(t, code);
}

static semel_status read_command(struct semel_str text, enum semel_command_kind *ret, struct semel_error *err)
{
    for (*ret = SEMEL_COMMAND_RETRY; *ret <= SEMEL_COMMAND_RESOLVE; ++*ret)
        if (semel__str_eqz(text, semel__command_name(*ret)))
            return SEMEL_OK;
    return wrong(err, "command", "retry, discard or resolve");
}

struct wish {
    struct semel_instruction given;
    struct semel_filter filter;
    struct semel_bulk_options options;
    bool dry;
};

static semel_status read_wish(struct task *t, struct wish *w, struct semel_error *err)
{
    struct semel_str command = {0}, who = {0};
    struct options options = {0};
    const struct member members[] = {
        {"command", TEXT, &command},        {"filter", OPTIONS, &options},      {"reason", TEXT, &w->given.reason},
        {"force", FLAG, &w->given.force},   {"rate", NUMBER, &w->options.rate}, {"wait", SPAN, &w->options.wait_us},
        {"probe", FLAG, &w->options.probe}, {"dry_run", FLAG, &w->dry},         {"who", TEXT, &who},
    };
    semel_status status = read_body(t, members, sizeof members / sizeof members[0], err);
    if (status == SEMEL_OK)
        status = read_command(command, &w->given.kind, err);
    if (status == SEMEL_OK && w->given.force && w->given.kind != SEMEL_COMMAND_RETRY)
        status = wrong(err, "force", "left out: it is for retry");
    if (status == SEMEL_OK)
        status = set_who(t, who, err);
    if (status == SEMEL_OK)
        status = semel__ops_filter(options.at, options.n, semel__now(&semel__clock_real), &w->filter, err);
    if (status == SEMEL_OK)
        status = semel__bulk_check(&w->filter, w->given.kind, err);
    if (status == SEMEL_OK && semel__ops_check(&w->given, w->dry, err) != SEMEL_OK) {
        err->cls = SEMEL_CLASS_PERMANENT;
        status = SEMEL_INVALID;
    }
    return status;
}

/* Counts first, as the command line does: a selection that is too large is refused, and nothing is stored. */
static void post_selection(struct task *t)
{
    struct wish w = {.options = {.rate = SEMEL_NONE, .wait_us = SEMEL_BULK_WAIT_US, .probe = true}};
    struct semel_groups groups;
    struct semel_selection selection = {0};
    struct semel_error err = {0};
    struct run *run = run_place(t->api);
    int64_t total = 0;
    semel_status status = read_wish(t, &w, &err);
    if (status == SEMEL_OK)
        status = semel__bulk_count(t->ops, &w.filter, &groups, &total, &err);
    if (status == SEMEL_OK && total == 0) {
        semel__http_refuse(t->x, 404, "no message matches");
        return;
    }
    if (status == SEMEL_OK && w.dry) {
        semel__ops_json_dry_run(semel__http_body(t->x), w.given.kind, total, &groups);
        answer(t, 200);
        return;
    }
    if (status == SEMEL_OK && run == NULL) {
        semel__endpoint_later(t->x, AFTER_S, "too many bulk commands run");
        return;
    }
    if (status == SEMEL_OK)
        status = semel__bulk_select(t->ops, &w.filter, &w.given, &selection, &err);
    if (status == SEMEL_OK && selection.n > 0)
        status = run_start(t, run, &selection, &w.options, &err);
    if (status != SEMEL_OK)
        fail(t, status, &err);
    else if (selection.n == 0)
        semel__http_refuse(t->x, 404, "no message matches any more");
    else
        answer_selection(t, selection.number, 201);
}

/* The number in the path; 0: there is none, and the request was answered. */
static int64_t read_number(struct task *t)
{
    int64_t number = 0;
    if (semel__str_int64(param(t, "number"), &number) && number > 0)
        return number;
    semel__http_refuse(t->x, 404, "a selection is named by its number");
    return 0;
}

static void get_selection(struct task *t)
{
    int64_t number = read_number(t);
    if (number > 0)
        answer_selection(t, number, 200);
}

static void post_resume(struct task *t)
{
    struct semel_bulk_options options = {.rate = SEMEL_NONE, .wait_us = SEMEL_BULK_WAIT_US, .probe = true};
    struct semel_selection selection;
    struct semel_error err = {0};
    struct semel_str who = {0};
    const struct member members[] = {{"rate", NUMBER, &options.rate},
                                     {"wait", SPAN, &options.wait_us},
                                     {"probe", FLAG, &options.probe},
                                     {"who", TEXT, &who}};
    int64_t number = read_number(t);
    bool found = true;
    if (number == 0)
        return;
    struct run *run = run_of(t->api, number);
    if (run != NULL && run->next_us >= 0) {
        semel__http_refuse(t->x, 409, "selection %lld is being worked through already", (long long)number);
        return;
    }
    run = run != NULL ? run : run_place(t->api);
    semel_status status = read_body(t, members, 4, &err);
    if (status == SEMEL_OK)
        status = set_who(t, who, &err);
    if (status == SEMEL_OK)
        status = semel__bulk_find(t->ops, number, &selection, &found, &err);
    if (status == SEMEL_OK && found && run == NULL) {
        semel__endpoint_later(t->x, AFTER_S, "too many bulk commands run");
        return;
    }
    if (status == SEMEL_OK && found)
        status = run_start(t, run, &selection, &options, &err);
    if (status != SEMEL_OK)
        fail(t, status, &err);
    else
        answer_selection(t, number, 202);
}

static void post_stop(struct task *t)
{
    int64_t number = read_number(t);
    struct run *run = number > 0 ? run_of(t->api, number) : NULL;
    struct semel_error err = {0};
    if (number == 0)
        return;
    semel_status status = read_body(t, NULL, 0, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    if (run != NULL && run->next_us >= 0) {
        semel__bulk_stop(run->bulk, "interrupted", "interrupted");
        run->next_us = -1;
    }
    answer_selection(t, number, 200);
}

/* ---- consumers ------------------------------------------------------------------------------------- */

static void get_consumers(struct task *t)
{
    static const char *const names[] = {"limit", "after", NULL};
    struct semel_str after = semel__http_query(t->req, "after"), limit = semel__http_query(t->req, "limit");
    struct semel_consumer_line *lines = NULL;
    struct semel_error err = {0};
    int64_t max = CONSUMERS;
    size_t n = 0;
    if (bad_query(t, names))
        return;
    if (semel__str_given(limit) && (!semel__str_int64(limit, &max) || max < 1 || max > CONSUMERS_MAX)) {
        semel__http_refuse(t->x, 400, "limit must be a whole number from 1 to %d", CONSUMERS_MAX);
        return;
    }
    semel_status status = semel__ops_consumers(t->ops, after, (size_t)max + 1, &lines, &n, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    bool more = n > (size_t)max;
    n = more ? (size_t)max : n;
    if (more)
        (void)set_next(t, "/v1/consumers", lines[n - 1].name); /* a name and a number always fit */
    semel__ops_json_consumers(semel__http_body(t->x), lines, n);
    answer(t, 200);
}

static void get_consumer(struct task *t)
{
    struct semel_consumer_shown shown = {0};
    struct semel_error err = {0};
    bool known = false;
    semel_status status = semel__id_check("consumer", param(t, "consumer"), 1, &err);
    if (status == SEMEL_OK)
        status = semel__ops_consumer(t->ops, param(t, "consumer"), &shown, &known, &err);
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    if (!known) {
        semel__http_refuse(t->x, 404, "there is no such consumer: it has neither messages nor settings");
        return;
    }
    semel__ops_json_consumer(semel__http_body(t->x), &shown.policy, &shown.by, NULL);
    answer(t, 200);
}

/* The body has the members to change; reason, author and force are options of the query. */
static void patch_settings(struct task *t)
{
    static const char *const names[] = {"reason", "force", "who", NULL};
    struct semel_str force_text = semel__http_query(t->req, "force"), reason = semel__http_query(t->req, "reason");
    struct semel_setting now = {0};
    struct semel_error err = {0};
    bool force = false;
    if (bad_query(t, names))
        return;
    semel_status status = semel__id_check("consumer", param(t, "consumer"), 1, &err);
    if (status == SEMEL_OK && semel__str_given(force_text))
        status = read_flag(force_text, "force", &force, &err);
    if (status == SEMEL_OK)
        status = set_who(t, semel__http_query(t->req, "who"), &err);
    if (status == SEMEL_OK && force && reason.n == 0)
        status = wrong(&err, "reason", "given with force (goes to the audit log)");
    if (status != SEMEL_OK) {
        fail(t, status, &err);
        return;
    }
    status = semel__ops_consumer_set(t->ops, param(t, "consumer"), t->req->body, reason, force, &now, &err);
    if (now.refused)
        semel__http_refuse(t->x, 409, "%s; force would do it", err.text);
    else if (status == SEMEL_INVALID && err.code == 0)
        semel__http_refuse(t->x, 400, "%s", err.text);
    else if (status != SEMEL_OK)
        fail(t, status, &err);
    else {
        semel__ops_json_consumer(semel__http_body(t->x), &now.policy, NULL, now.hint);
        answer(t, 200);
    }
}

/* ---- the paths ------------------------------------------------------------------------------------- */

/* `plain`: it has no options in its query; the others parse theirs themselves. */
static const struct {
    unsigned method;
    const char *path;
    void (*serve)(struct task *t);
    bool plain;
} calls[] = {
    {SEMEL_HTTP_BIT(GET), "/v1/inbox", get_list, false},
    {SEMEL_HTTP_BIT(GET), "/v1/inbox/groups", get_groups, false},
    {SEMEL_HTTP_BIT(GET), "/v1/inbox/{consumer}/{id}", get_message, false},
    {SEMEL_HTTP_BIT(GET), "/v1/inbox/{consumer}/{id}/payload", get_payload, false},
    {SEMEL_HTTP_BIT(POST), "/v1/inbox/{consumer}/{id}/retry", post_retry, false},
    {SEMEL_HTTP_BIT(POST), "/v1/inbox/{consumer}/{id}/discard", post_discard, false},
    {SEMEL_HTTP_BIT(POST), "/v1/inbox/{consumer}/{id}/resolve", post_resolve, false},
    {SEMEL_HTTP_BIT(POST), "/v1/inbox/{consumer}/{id}/reconcile", post_reconcile, false},
    {SEMEL_HTTP_BIT(GET), "/v1/outbox", get_events, false},
    {SEMEL_HTTP_BIT(GET), "/v1/outbox/{id}", get_event, true},
    {SEMEL_HTTP_BIT(POST), "/v1/outbox/{id}/retry", post_event_retry, true},
    {SEMEL_HTTP_BIT(POST), "/v1/outbox/{id}/discard", post_event_discard, true},
    {SEMEL_HTTP_BIT(GET), "/v1/keys", get_keys, false},
    {SEMEL_HTTP_BIT(GET), "/v1/keys/{scope}/{key}", get_key, false},
    {SEMEL_HTTP_BIT(GET), "/v1/keys/{scope}/{key}/body", get_key_body, true},
    {SEMEL_HTTP_BIT(POST), "/v1/keys/{scope}/{key}/resolve", post_key_resolve, true},
    {SEMEL_HTTP_BIT(POST), "/v1/keys/{scope}/{key}/discard", post_key_discard, true},
    {SEMEL_HTTP_BIT(POST), "/v1/keys/{scope}/{key}/reconcile", post_reconcile, true},
    {SEMEL_HTTP_BIT(POST), "/v1/selections", post_selection, true},
    {SEMEL_HTTP_BIT(GET), "/v1/selections/{number}", get_selection, true},
    {SEMEL_HTTP_BIT(POST), "/v1/selections/{number}/resume", post_resume, true},
    {SEMEL_HTTP_BIT(POST), "/v1/selections/{number}/stop", post_stop, true},
    {SEMEL_HTTP_BIT(GET), "/v1/consumers", get_consumers, false},
    {SEMEL_HTTP_BIT(GET), "/v1/consumers/{consumer}", get_consumer, true},
    {SEMEL_HTTP_BIT(PATCH), "/v1/consumers/{consumer}/settings", patch_settings, false},
};
#define CALLS (sizeof calls / sizeof calls[0])

size_t semel__api_routes(struct semel_api *api, unsigned read, unsigned write, struct semel_http_route *routes)
{
    for (size_t i = 0; i < CALLS && routes != NULL; i++) {
        bool get = calls[i].method == SEMEL_HTTP_BIT(GET);
        routes[i] = (struct semel_http_route){.methods = calls[i].method,
                                              .path = calls[i].path,
                                              .needs = get ? read | write : write,
                                              .body_max = get ? 0 : SEMEL_API_BODY_MAX,
                                              .handle = enter,
                                              .timeout_ms = SEMEL_ANSWER_MS,
                                              .overdue = overdue,
                                              .ctx = api};
    }
    return CALLS;
}

static void serve_call(struct semel_api *api, struct semel_ops *ops, const struct call *call)
{
    struct task t = {.api = api, .ops = ops, .x = call->x, .req = semel__http_request(call->x)};
    static const char *const no_names[] = {NULL};
    if (call->asking != NULL) {
        end_reconcile(&t, call->asking);
        return;
    }
    for (size_t i = 0; i < CALLS; i++) {
        if (t.req->route->path != calls[i].path)
            continue;
        if (!calls[i].plain || !bad_query(&t, no_names))
            calls[i].serve(&t);
        return;
    }
    semel__http_refuse(t.x, 404, "there is nothing at this path");
}

/* ---- the task -------------------------------------------------------------------------------------- */

/* When the next bulk command wants its step, at most until_us. */
static int64_t next_step_us(const struct semel_api *api, int64_t until_us)
{
    for (size_t i = 0; i < SEMEL_API_RUNS; i++)
        if (api->runs[i].bulk != NULL && api->runs[i].next_us >= 0 && api->runs[i].next_us < until_us)
            until_us = api->runs[i].next_us;
    return until_us;
}

static void step_runs(struct semel_api *api)
{
    int64_t now_us = semel__steady_us();
    for (size_t i = 0; i < SEMEL_API_RUNS; i++) {
        struct run *run = &api->runs[i];
        if (run->bulk == NULL || run->next_us < 0 || run->next_us > now_us)
            continue;
        semel__arena_reset(&run->arena);
        int64_t wait_us = semel__bulk_step(run->bulk);
        run->next_us = wait_us < 0 ? -1 : semel__steady_us() + wait_us;
        const char *cause, *stopped = semel__bulk_stopped(run->bulk, &cause);
        api->lost |= wait_us < 0 && stopped != NULL && strcmp(stopped, "store") == 0;
    }
}

static void step_call(struct semel_api *api, struct semel_store *store, struct call *call)
{
    struct semel_error err = {0};
    struct semel_ops ops;
    semel__arena_reset(&api->arena);
    semel_status status = semel__ops_init(&ops, store, &api->arena, SEMEL_STR("http"), &err);
    if (status == SEMEL_OK && semel__http_hung_up(call->x))
        /* the client may ask again: do nothing twice */
        semel__endpoint_later(call->x, AFTER_S, "the client has hung up");
    else if (status == SEMEL_OK)
        serve_call(api, &ops, call);
    else
        semel__endpoint_later(call->x, AFTER_S, err.text);
    semel__ops_done(&ops);
    pthread_mutex_lock(&api->lock);
    call_free(api, call);
    pthread_mutex_unlock(&api->lock);
}

semel_status semel__api_step(struct semel_api *api, struct semel_store *store, int wait_ms, struct semel_error *err)
{
    if (api->lost) {
        semel_status status = semel_store_reopen(store, err);
        api->lost = status != SEMEL_OK;
        if (api->lost)
            return status;
    }
    int64_t until_us = next_step_us(api, semel__steady_us() + (int64_t)wait_ms * 1000);
    pthread_mutex_lock(&api->lock);
    while (api->first == NULL && semel__steady_us() < until_us)
        if (!semel__cond_wait(&api->changed, &api->lock, until_us))
            break;
    struct call *call = pop(api, &api->first);
    if (call != NULL && call->x == NULL) { /* overdue, and answered */
        call_free(api, call);
        call = NULL;
    }
    pthread_mutex_unlock(&api->lock);
    if (call != NULL)
        step_call(api, store, call);
    step_runs(api);
    return SEMEL_OK;
}
