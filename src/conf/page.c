/* SPDX-License-Identifier: MIT
 *
 * page.c: the table of the settings, for people: a walk for docs/settings.md, and the file that `semel init` prints.
 *
 * Invariants: nothing is said here of any setting; both come from the table, and from core's where a setting is a
 * member of it. What `semel init` prints is a file that can be read (test_check reads every one).
 */
#include <stdio.h>

#include "conf/private.h"
#include "core/consumer.h"

#define WIDTH 100
#define ROUTE "example"

/* ---- what core knows ----------------------------------------------------------------------------- */

struct described {
    const char *member;
    char type[160], other[128], help[256];
};

static void on_member(void *ctx, const char *name, const char *kind, const char *value, const char *help)
{
    struct described *d = ctx;
    char range[128];
    if (strcmp(name, d->member) != 0)
        return;
    bool flag = strcmp(kind, "true|false") == 0, words = !flag && strchr(kind, '|') != NULL;
    const char *before = flag ? "" : strncmp(kind, "duration", 8) == 0 ? "a " : words ? "one of " : "a whole number, ";
    semel__conf_translate(kind, range, sizeof(range));
    snprintf(d->type, sizeof(d->type), "%s%s", before, flag ? "true or false" : range);
    snprintf(d->other, sizeof(d->other), "%s", value);
    semel__conf_translate(help, d->help, sizeof(d->help));
}

static void describe(const struct conf_setting *s, struct described *d)
{
    *d = (struct described){.member = s->member};
    if (s->kind == CONF_MEMBER) {
        semel__policy_members(on_member, d);
        return;
    }
    semel__conf_type(s, d->type, sizeof(d->type));
    if (s->other != NULL || s->other_says != NULL)
        snprintf(d->other, sizeof(d->other), "%s", s->other != NULL ? s->other : s->other_says);
    snprintf(d->help, sizeof(d->help), "%s", s->help);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

struct walk {
    void (*each)(void *ctx, const struct semel_conf_shown *shown);
    void *ctx;
};

static void walk_group(const struct walk *w, const struct conf_group *group, const char *before, const char *choice);

static void walk_setting(const struct walk *w, const struct conf_setting *s, const char *before, const char *choice)
{
    char path[CONF_PATH_MAX];
    struct described d;
    describe(s, &d);
    snprintf(path, sizeof(path), "%s%s%s", before, before[0] != '\0' ? "." : "", s->name);
    const struct semel_conf_shown shown = {
        .path = path,
        .choice = choice,
        .type = d.type,
        .other = d.other[0] != '\0' ? d.other : NULL,
        .computed = s->other_says != NULL,
        .help = d.help,
        .required = (s->flags & CONF_REQUIRED) != 0,
        .secret = (s->flags & CONF_SECRET) != 0,
        .group = s->kind == CONF_GROUP || s->kind == CONF_ONE_OF || s->kind == CONF_ROUTES,
    };
    w->each(w->ctx, &shown);
    if (s->kind == CONF_ROUTES)
        snprintf(path + strlen(path), sizeof(path) - strlen(path), ".NAME");
    if (s->group != NULL)
        walk_group(w, s->group, path, choice);
    for (size_t i = 0; s->choices != NULL && s->choices[i] != NULL; i++)
        walk_group(w, s->choices[i], path, s->choices[i]->name);
}

/* As deep as the table. */
static void walk_group(const struct walk *w, const struct conf_group *group, const char *before, const char *choice)
{
    for (size_t i = 0; i < group->n; i++)
        walk_setting(w, &group->settings[i], before, choice);
}

void semel__conf_settings(void (*each)(void *ctx, const struct semel_conf_shown *shown), void *ctx)
{
    const struct walk w = {each, ctx};
    walk_group(&w, &semel__conf_root, "", NULL);
}

/* ---- a file to start with ------------------------------------------------------------------------ */

struct writer {
    struct semel_buf *buf;
    enum semel_source_kind source;
    enum semel_do_kind handler;
};

static void write_group(const struct writer *w, const struct conf_group *group, int indent, bool off);

/* Words in lines of comment. */
static void comment(const struct writer *w, int indent, const char *text)
{
    int column = 0;
    while (*text != '\0') {
        int n = (int)strcspn(text, " ");
        if (column == 0 || column + 1 + n > WIDTH) {
            semel__buf_addf(w->buf, "%s%*s#", column > 0 ? "\n" : "", indent, "");
            column = indent + 1;
        }
        semel__buf_addf(w->buf, " %.*s", n, text);
        column += 1 + n;
        text += n;
        text += strspn(text, " ");
    }
    semel__buf_addz(w->buf, "\n");
}

static const char *sample(const struct conf_setting *s)
{
    static const char *const samples[] = {
        [CONF_RULE] = "json:/POINTER", [CONF_RULES] = "json:/POINTER", [CONF_TEXTS] = "[TEXT]",
        [CONF_PAIRS] = "{NAME: TEXT}", [CONF_ADDRESS] = "HOST:PORT",   [CONF_URL] = "URL",
        [CONF_FILE] = "FILE",          [CONF_PROGRAM] = "[PROGRAM]",   [CONF_TEXT] = "TEXT",
    };
    if ((s->flags & CONF_SECRET) != 0)
        return "${VARIABLE}";
    if (s->kind == CONF_WORD)
        return s->words[0];
    return s->kind < CONF_COUNT(samples) && samples[s->kind] != NULL ? samples[s->kind] : "VALUE";
}

static void write_line(const struct writer *w, const struct conf_setting *s, const struct described *d, int indent,
                       bool off)
{
    bool live = !off && s->example != NULL && ((s->flags & CONF_FOR_SQL) == 0 || w->handler == SEMEL_DO_SQL);
    const char *value = s->example;
    if (!live)
        value = d->other[0] != '\0' && s->other_says == NULL ? d->other : sample(s);
    semel__buf_addf(w->buf, "%*s%s%s: %s\n", indent, "", live ? "" : "#", s->name, value);
}

static void write_setting(const struct writer *w, const struct conf_setting *s, int indent, bool off)
{
    struct described d;
    char text[512];
    bool required = (s->flags & CONF_REQUIRED) != 0;
    bool group = s->kind == CONF_GROUP || s->kind == CONF_ONE_OF || s->kind == CONF_ROUTES;
    bool live = !off && (required || s->example != NULL);
    describe(s, &d);
    snprintf(text, sizeof(text), "%s%s%s", d.help, s->other_says != NULL ? "; default: " : "",
             s->other_says != NULL ? s->other_says : "");
    if (indent == 0)
        semel__buf_addz(w->buf, "\n");
    comment(w, indent, text);
    if (!group) {
        write_line(w, s, &d, indent, off);
        return;
    }
    semel__buf_addf(w->buf, "%*s%s%s:\n", indent, "", live ? "" : "#", s->name);
    if (s->kind == CONF_ROUTES) {
        indent += 2;
        semel__buf_addf(w->buf, "%*s" ROUTE ":\n", indent, "");
    }
    const struct conf_group *below = s->group;
    if (s->choices != NULL)
        below = s->choices[s->choices == semel__conf_sources ? (int)w->source : (int)w->handler];
    write_group(w, below, indent + 2, !live);
}

static void write_group(const struct writer *w, const struct conf_group *group, int indent, bool off)
{
    for (size_t i = 0; i < group->n; i++)
        write_setting(w, &group->settings[i], indent, off);
}

void semel__conf_example(enum semel_source_kind source, enum semel_do_kind handler, struct semel_buf *buf)
{
    const struct writer w = {buf, source, handler};
    semel__buf_addz(buf,
                    "# Settings of `semel run`. `semel check FILE` finds mistakes and says what each route promises.\n"
                    "# ${VARIABLE} in a value is taken from the environment. A line with # and no blank behind it is\n"
                    "# a setting that is not said; what stands there is its default, or the form of its value.\n");
    write_group(&w, &semel__conf_root, 0, false);
}
