/* SPDX-License-Identifier: MIT
 *
 * fuzz_conf.c: any bytes as a file of settings. The environment has one variable, SECRET.
 *
 * What must hold: a file is read, or it has mistakes; each mistake lies within the file, is printable, and its caret
 * stands in the line that is shown; the value of SECRET is in no text; reading twice says the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"

#define SECRET "postgres://u:hunter2-0123456789@h/d"
#define HIDDEN "hunter2-0123456789"
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* fy_token_get_text (libfyaml 0.7) forgets a buffer when a quoted scalar has many escapes. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfyaml.so";
}

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_conf.c:%d: does not hold: %s\n", line, condition);
    abort();
}

static const char *environment(void *ctx, const char *name)
{
    (void)ctx;
    return strcmp(name, "SECRET") == 0 ? SECRET : NULL;
}

static bool said; /* the file itself has what is to be hidden */

static bool holds(struct semel_str text, const char *word)
{
    for (size_t i = 0, n = strlen(word); i + n <= text.n; i++)
        if (memcmp(text.p + i, word, n) == 0)
            return true;
    return false;
}

static void printable(struct semel_str text)
{
    for (size_t i = 0; i < text.n; i++)
        MUST((unsigned char)text.p[i] >= 0x20 && text.p[i] != 0x7f);
    MUST(text.n == 0 || semel__utf8_valid(text));
    MUST(said || !holds(text, HIDDEN));
}

static int characters(struct semel_str text)
{
    int n = 0;
    for (size_t i = 0; i < text.n; i++)
        n += ((unsigned char)text.p[i] & 0xC0) != 0x80;
    return n;
}

static void check_mistakes(const struct semel_conf_mistakes *mistakes, struct semel_str text)
{
    int lines = 1;
    for (size_t i = 0; i < text.n; i++)
        lines += text.p[i] == '\n';
    MUST(mistakes->n > 0 && mistakes->n <= SEMEL_CONF_MISTAKES);
    for (size_t i = 0; i < mistakes->n; i++) {
        const struct semel_conf_mistake *m = &mistakes->at[i];
        MUST(m->line >= 1 && m->line <= lines && m->column >= 1);
        MUST(i == 0 || m->line >= mistakes->at[i - 1].line);
        MUST(m->text.n > 0);
        printable(m->text);
        printable(m->path);
        printable(m->shown);
        if (m->shown.p != NULL)
            MUST(m->caret >= 0 && m->width >= 1 && m->caret <= characters(m->shown));
    }
}

static void check_routes(const struct semel_conf *conf)
{
    MUST(conf->n_routes >= 1 && conf->n_routes <= SEMEL_CONF_ROUTES_MAX && conf->store.n > 0);
    for (size_t i = 0; i < conf->n_routes; i++) {
        const struct semel_route *route = &conf->routes[i];
        printable(route->promise.why);
        for (int k = 0; k < SEMEL_CHECKLIST_COUNT; k++) {
            MUST(route->promise.answers[k].n > 0);
            printable(route->promise.answers[k]);
        }
        MUST(semel__policy_check(&route->policy, NULL) == SEMEL_OK);
        MUST(route->horizon.broker_us == SEMEL_NONE ||
             route->policy.retention_us >= semel__horizon_us(&route->horizon));
    }
}

static void read_once(struct semel_str text, struct semel_buf *buf)
{
    const struct semel_conf_input input = {.name = "f", .folder = "/nonexistent", .text = text, .env = environment};
    static struct semel_conf_mistakes mistakes;
    struct semel_conf *conf = NULL;
    struct semel_error err;
    semel__conf_mistakes_init(&mistakes);
    semel_status status = semel__conf_read(&input, &conf, &mistakes, &err);
    MUST(status == SEMEL_OK || status == SEMEL_INVALID);
    MUST((status == SEMEL_OK) == (conf != NULL));
    if (conf != NULL)
        check_routes(conf);
    else
        check_mistakes(&mistakes, text);
    semel__conf_mistakes_print(&mistakes, buf);
    MUST(!buf->failed);
    semel__conf_free(conf);
    semel__conf_mistakes_done(&mistakes);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct semel_str text = {(const char *)data, size};
    struct semel_buf first, second;
    semel__buf_init(&first, 1 << 22);
    semel__buf_init(&second, 1 << 22);
    said = holds(text, HIDDEN);
    read_once(text, &first);
    read_once(text, &second);
    MUST(semel__str_eq(semel__buf_str(&first), semel__buf_str(&second)));
    semel__buf_done(&first);
    semel__buf_done(&second);
    return 0;
}
