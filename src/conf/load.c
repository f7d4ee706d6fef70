/* SPDX-License-Identifier: MIT
 *
 * load.c: from a file to settings: reads its bytes, has them made into a tree and the tree into structs, frees both.
 *
 * Invariants: what is given out has no mistake; otherwise nothing is given out. Memory that held secrets is wiped
 * before it is freed, on every way out.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "conf/private.h"

/* ---- names --------------------------------------------------------------------------------------- */

const char *semel__conf_mechanism_name(enum semel_conf_mechanism mechanism)
{
    static const char *const names[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"};
    return names[mechanism];
}

const char *semel__source_name(enum semel_source_kind kind)
{
    return semel__conf_sources[kind]->name;
}

const char *semel__do_name(enum semel_do_kind kind)
{
    return semel__conf_handlers[kind]->name;
}

bool semel__source_parse(struct semel_str name, enum semel_source_kind *ret)
{
    for (size_t i = 0; semel__conf_sources[i] != NULL; i++)
        if (semel__str_eqz(name, semel__conf_sources[i]->name)) {
            *ret = (enum semel_source_kind)i;
            return true;
        }
    return false;
}

bool semel__do_parse(struct semel_str name, enum semel_do_kind *ret)
{
    for (size_t i = 0; semel__conf_handlers[i] != NULL; i++)
        if (semel__str_eqz(name, semel__conf_handlers[i]->name)) {
            *ret = (enum semel_do_kind)i;
            return true;
        }
    return false;
}

/* ---- from text ----------------------------------------------------------------------------------- */

void semel__conf_free(struct semel_conf *conf)
{
    struct conf_owned *owned = (struct conf_owned *)conf;
    if (owned == NULL)
        return;
    semel__conf_secrets_free(owned);
    semel__arena_done(&owned->arena);
    semel__free(owned);
}

semel_status semel__conf_read(const struct semel_conf_input *input, struct semel_conf **ret,
                              struct semel_conf_mistakes *mistakes, struct semel_error *err)
{
    struct conf_owned *owned = semel__calloc(1, sizeof(*owned));
    struct conf_reader *r = semel__calloc(1, sizeof(*r)); /* too large for a stack */
    semel_status status = SEMEL_OK;
    mistakes->file = input->name;
    if (owned == NULL || r == NULL) {
        semel__free(owned);
        semel__free(r);
        return semel__fail_memory(err);
    }
    semel__arena_init(&owned->arena, CONF_ARENA_MAX);
    *r = (struct conf_reader){.input = input, .owned = owned, .mistakes = mistakes};
    r->tree = semel__conf_tree(r);
    if (r->tree != NULL)
        semel__conf_expand(r, r->tree);
    if (r->tree != NULL && !r->failed)
        semel__conf_walk(r);
    semel__conf_mistakes_sort(mistakes);
    if (r->failed)
        status = semel__fail_memory(err);
    else if (mistakes->n > 0)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: there are %zu mistakes in the settings",
                             input->name, mistakes->n + mistakes->more);
    if (status == SEMEL_OK)
        *ret = &owned->conf;
    else
        semel__conf_free(&owned->conf);
    semel__free(r);
    return status;
}

/* ---- from a file --------------------------------------------------------------------------------- */

static const char *from_environment(void *ctx, const char *name)
{
    (void)ctx;
    return getenv(name); /* NOLINT(concurrency-mt-unsafe): settings are read before there are threads */
}

static semel_status unreadable(const char *file, const char *why, struct semel_error *err)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s cannot be read: %s", file, why);
}

static semel_status drain(int fd, const char *file, struct semel_buf *buf, struct semel_error *err)
{
    char chunk[16384];
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return unreadable(file, "it is a directory", err);
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return unreadable(file, strerror(errno), err); /* NOLINT(concurrency-mt-unsafe) */
        if (n == 0)
            return SEMEL_OK;
        if (!semel__buf_add(buf, chunk, (size_t)n))
            return buf->full ? unreadable(file, "it has more than 1 MiB", err) : semel__fail_memory(err);
    }
}

/* The folder of a file, for the relative names in it; NULL: the working directory. */
static const char *folder_of(const char *file, char *out, size_t size)
{
    const char *slash = strrchr(file, '/');
    if (slash == NULL || (size_t)(slash - file) >= size)
        return NULL;
    snprintf(out, size, "%.*s", slash == file ? 1 : (int)(slash - file), file);
    return out;
}

semel_status semel__conf_load(const char *file, struct semel_conf **ret, struct semel_conf_mistakes *mistakes,
                              struct semel_error *err)
{
    bool is_stdin = strcmp(file, "-") == 0;
    char folder[4096];
    struct semel_conf_input input = {.name = is_stdin ? "stdin" : file, .env = from_environment};
    struct semel_buf buf;
    int fd = is_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return unreadable(file, strerror(errno), err); /* NOLINT(concurrency-mt-unsafe) */
    semel__buf_init(&buf, SEMEL_CONF_TEXT_MAX);
    semel_status status = drain(fd, input.name, &buf, err);
    if (!is_stdin)
        close(fd);
    input.text = semel__buf_str(&buf);
    input.folder = is_stdin ? NULL : folder_of(file, folder, sizeof(folder));
    if (status == SEMEL_OK)
        status = semel__conf_read(&input, ret, mistakes, err);
    if (buf.p != NULL)
        explicit_bzero(buf.p, buf.n);
    semel__buf_done(&buf);
    return status;
}
