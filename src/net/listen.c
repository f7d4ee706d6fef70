/* SPDX-License-Identifier: MIT
 *
 * listen.c: a listener: what its settings must say, its socket, its TLS context.
 *
 * A unix socket's file has mode 0600 from its first moment: Linux makes it with the mode of the socket, which
 * is set before the bind. A file that a dead server left behind is replaced; a living server's is not, nor is anything
 * that is not a socket.
 *
 * Invariants: an address that is not loopback has TLS, or `plain` said that it shall not.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "net/route.h"
#include "net/server.h"

#define BACKLOG 128

void semel__http_settings_init(struct semel_http_settings *settings)
{
    *settings = (struct semel_http_settings){
        .limits = {.connections = 256,
                   .requests = 10000,
                   .head_bytes = 16384,
                   .head_fields = 100,
                   .held_bytes = (size_t)16 << 20,
                   .reply_max = (size_t)16 << 20,
                   .idle_ms = 60000,
                   .head_ms = 10000,
                   .body_ms = 30000,
                   .write_ms = 30000,
                   .linger_ms = 2000},
    };
}

static semel_status invalid(struct semel_error *err, const char *address, const char *why)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_PERMANENT, "listener %s: %s", address, why);
}

static semel_status settings_check(const struct semel_http_settings *s, const struct semel_address *address,
                                   struct semel_error *err)
{
    const struct semel_http_limits *l = &s->limits;
    if ((s->cert_file == NULL) != (s->key_file == NULL))
        return invalid(err, s->address, "a certificate and its key belong together");
    if (s->client_ca_file != NULL && s->cert_file == NULL)
        return invalid(err, s->address, "a client CA needs TLS: give a certificate and a key");
    if (address->storage.ss_family == AF_UNIX && s->cert_file != NULL)
        return invalid(err, s->address, "a unix socket has no TLS");
    if (!address->loopback && s->cert_file == NULL && !s->plain)
        return invalid(err, s->address, "not loopback: give a certificate and a key, or say plain: true");
    if (l->connections == 0 || l->requests == 0 || l->head_bytes < 256 || l->head_fields == 0 || l->idle_ms == 0 ||
        l->head_ms == 0 || l->body_ms == 0 || l->write_ms == 0 || l->linger_ms == 0)
        return invalid(err, s->address, "every limit must be above 0, and a head have room for 256 bytes");
    return semel__routes_check(s->routes, s->n_routes, err);
}

static bool copy(char **ret, const char *text)
{
    size_t n = text != NULL ? strlen(text) + 1 : 0;
    if (n == 0)
        return true;
    *ret = semel__alloc(n);
    if (*ret != NULL)
        memcpy(*ret, text, n);
    return *ret != NULL;
}

static semel_status tls_init(struct semel_http_listener *listener, const struct semel_http_settings *settings,
                             struct semel_error *err)
{
    if (settings->cert_file == NULL)
        return SEMEL_OK;
    if (!copy(&listener->cert_file, settings->cert_file) || !copy(&listener->key_file, settings->key_file) ||
        !copy(&listener->client_ca_file, settings->client_ca_file))
        return semel__fail_memory(err);
    return semel__tls_context_new(&listener->tls, listener->cert_file, listener->key_file, listener->client_ca_file,
                                  err);
}

/* Taken, not allowed, no such directory: what the kernel says. RETRY where waiting may help. */
static semel_status bind_fault(struct semel_error *err, const char *address, int error)
{
    semel_status status = error == EADDRINUSE || error == EADDRNOTAVAIL || error == EMFILE || error == ENOMEM
                              ? SEMEL_RETRY
                              : SEMEL_INVALID;
    enum semel_class cls = status == SEMEL_RETRY ? SEMEL_CLASS_ENVIRONMENT : SEMEL_CLASS_PERMANENT;
    semel__fail(err, status, cls, "listener %s: %s", address, uv_strerror(-error));
    if (err != NULL)
        err->code = error;
    return status;
}

/* Whether a server answers there. What is there and dead is removed. */
static int clear_path(const struct sockaddr_un *un)
{
    struct stat st;
    if (lstat(un->sun_path, &st) != 0)
        return errno == ENOENT ? 0 : errno;
    if (!S_ISSOCK(st.st_mode))
        return EEXIST;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    bool dead = connect(fd, (const struct sockaddr *)un, sizeof(*un)) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!dead)
        return EADDRINUSE;
    return unlink(un->sun_path) == 0 || errno == ENOENT ? 0 : errno;
}

static int bind_unix(struct semel_http_listener *listener)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)&listener->address.storage;
    struct stat st;
    int error = clear_path(un);
    if (error != 0)
        return error;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    bool bound = fchmod(fd, S_IRUSR | S_IWUSR) == 0 && bind(fd, (const struct sockaddr *)un, sizeof(*un)) == 0;
    if (bound && lstat(un->sun_path, &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
        listener->dev = st.st_dev;
        listener->ino = st.st_ino;
        error = -uv_pipe_open(&listener->u.pipe, fd);
    } else {
        error = bound ? EPERM : errno;
    }
    if (error != 0)
        close(fd);
    return error;
}

static int bind_tcp(struct semel_http_listener *listener)
{
    struct sockaddr_storage *storage = &listener->address.storage;
    int n = sizeof(*storage);
    int error = uv_tcp_bind(&listener->u.tcp, (const struct sockaddr *)storage,
                            storage->ss_family == AF_INET6 ? UV_TCP_IPV6ONLY : 0);
    return -error != 0 ? -error : -uv_tcp_getsockname(&listener->u.tcp, (struct sockaddr *)storage, &n);
}

static semel_status open_socket(struct semel_http_listener *listener, const char *text, struct semel_error *err)
{
    bool is_unix = listener->address.storage.ss_family == AF_UNIX;
    int error = is_unix ? bind_unix(listener) : bind_tcp(listener);
    if (error == 0)
        error = -uv_listen(&listener->u.stream, BACKLOG, semel__peer_accept);
    if (error == 0 && !is_unix) { /* a port of 0 was chosen by the bind */
        int n = sizeof(listener->address.storage);
        error = -uv_tcp_getsockname(&listener->u.tcp, (struct sockaddr *)&listener->address.storage, &n);
    }
    return error == 0 ? SEMEL_OK : bind_fault(err, text, error);
}

static void env_init(struct semel_http_listener *listener, const struct semel_http_settings *settings)
{
    struct semel_conn_env *env = &listener->env;
    env->routes = settings->routes;
    env->n_routes = settings->n_routes;
    env->limits = settings->limits;
    env->clock = listener->http->clock;
    env->observe = settings->observe;
    env->observe_ctx = settings->observe_ctx;
    listener->crowded = settings->crowded;
    env->back = semel__mail_back;
    env->take = semel__mail_take;
    env->gone = semel__mail_gone;
    env->aside = semel__mail_aside;
    env->back_ctx = listener->http->mail;
}

/* Its handles are initialised and it is in the list: it must be closed in the loop. */
static struct semel_http_listener *listener_new(struct semel_http *http, const struct semel_address *address)
{
    struct semel_http_listener *listener = semel__calloc(1, sizeof(*listener));
    if (listener == NULL)
        return NULL;
    listener->http = http;
    listener->address = *address;
    pthread_mutex_init(&listener->tls_lock, NULL);
    if (address->storage.ss_family == AF_UNIX)
        uv_pipe_init(&http->loop, &listener->u.pipe, 0);
    else
        uv_tcp_init(&http->loop, &listener->u.tcp);
    uv_timer_init(&http->loop, &listener->retry);
    listener->u.handle.data = listener->retry.data = listener;
    listener->next = http->listeners;
    http->listeners = listener;
    return listener;
}

semel_status semel__http_listen(struct semel_http *http, const struct semel_http_settings *settings,
                                struct semel_http_listener **ret_listener, struct semel_error *err)
{
    struct semel_address address;
    assert(!http->ran);
    semel_status status = semel__address_parse(&address, settings->address, err);
    if (status == SEMEL_OK)
        status = settings_check(settings, &address, err);
    if (status != SEMEL_OK)
        return status;
    struct semel_http_listener *listener = listener_new(http, &address);
    if (listener == NULL)
        return semel__fail_memory(err);
    env_init(listener, settings);
    status = semel__access_init(&listener->env.access, settings, address.storage.ss_family == AF_UNIX, err);
    if (status == SEMEL_OK && !semel__conn_share_out(&listener->env))
        status = semel__fail_memory(err);
    if (status == SEMEL_OK)
        status = tls_init(listener, settings, err);
    if (status == SEMEL_OK)
        status = open_socket(listener, settings->address, err);
    if (status != SEMEL_OK) {
        semel__listener_close(listener);
        return status;
    }
    if (ret_listener != NULL)
        *ret_listener = listener;
    return SEMEL_OK;
}

unsigned semel__http_port(const struct semel_http_listener *listener)
{
    return semel__address_port(&listener->address.storage);
}

semel_status semel__http_set_tokens(struct semel_http_listener *listener, const struct semel_http_token *tokens,
                                    size_t n_tokens, struct semel_error *err)
{
    return semel__access_set_tokens(&listener->env.access, tokens, n_tokens, err);
}

/* The file goes only if it is still ours: a successor may have taken the path. */
static void remove_path(struct semel_http_listener *listener)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)&listener->address.storage;
    struct stat st;
    if (listener->ino != 0 && lstat(un->sun_path, &st) == 0 && st.st_dev == listener->dev && st.st_ino == listener->ino)
        unlink(un->sun_path);
    listener->ino = 0;
}

void semel__listener_close(struct semel_http_listener *listener)
{
    if (uv_is_closing(&listener->u.handle))
        return;
    if (listener->address.storage.ss_family == AF_UNIX)
        remove_path(listener);
    uv_close(&listener->u.handle, NULL);
    uv_close((uv_handle_t *)&listener->retry, NULL);
}

void semel__listener_free(struct semel_http_listener *listener)
{
    semel__access_done(&listener->env.access);
    semel__conn_env_done(&listener->env);
    semel__tls_context_unref(listener->tls);
    pthread_mutex_destroy(&listener->tls_lock);
    semel__free(listener->cert_file);
    semel__free(listener->key_file);
    semel__free(listener->client_ca_file);
    semel__free(listener);
}
