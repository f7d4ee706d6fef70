/* SPDX-License-Identifier: MIT
 *
 * setting.h: how a setting is described, wherever it is declared, and the pieces that several settings are made of.
 *
 * Data only: what a setting is called, which values it takes, what it is without being set, what it is for, and where
 * in a struct its value goes. conf reads files by it; docs/settings.md and `semel init` are written by it.
 *
 * Invariants: the order of a group is that of the documentation. The first setting of a choice (`from: {kafka: ...}`)
 * has the choice's own name and is required. A default is written as a user would write it, and is read by the same
 * functions. Values that were read end with a NUL that is not counted; what was not given, and has no default, is NULL
 * or {NULL, 0}. A text goes into a `const char *` or a struct semel_str, a number into what has its size.
 */
#ifndef SEMEL_BASE_SETTING_H
#define SEMEL_BASE_SETTING_H

#include <stddef.h>

#include "base/str.h"

#define SEMEL_SETTING_LIST_MAX 64 /* values of a list, pairs of a mapping */

enum semel_setting_kind {
    SEMEL_SETTING_TEXT,
    SEMEL_SETTING_WORD,
    SEMEL_SETTING_NUMBER,
    SEMEL_SETTING_TIME,
    SEMEL_SETTING_FLAG,
    SEMEL_SETTING_RULE,    /* where a field of the message is */
    SEMEL_SETTING_RULES,   /* one or several */
    SEMEL_SETTING_TEXTS,   /* one text or a list */
    SEMEL_SETTING_PAIRS,   /* names with texts */
    SEMEL_SETTING_ADDRESS, /* where to listen */
    SEMEL_SETTING_URL,
    SEMEL_SETTING_FILE,
    SEMEL_SETTING_PROGRAM, /* an argument vector; the file of its first word stands behind it */
    SEMEL_SETTING_MEMBER,  /* core/consumer.h knows it */
    SEMEL_SETTING_GROUP,
    SEMEL_SETTING_ONE_OF, /* a mapping of one of several kinds, told apart by a key */
    SEMEL_SETTING_SOURCE, /* the same of all kinds of brokers that are sources (broker/kind.h) */
    SEMEL_SETTING_SINK,   /* the same of all kinds that are sinks */
    SEMEL_SETTING_ROUTES,
    SEMEL_SETTING_OUTBOXES
};

#define SEMEL_SETTING_REQUIRED 1u
#define SEMEL_SETTING_SECRET 2u    /* stands not in the file; NAME_file may be given instead */
#define SEMEL_SETTING_LITERAL 4u   /* a secret that may stand in the file as long as no password is in it */
#define SEMEL_SETTING_LINES 8u     /* a text of several lines */
#define SEMEL_SETTING_SWITCH 16u   /* a group that begins with a bool: it is there; `true` is short for {} */
#define SEMEL_SETTING_FOREVER 32u  /* a time that may be `forever`: SEMEL_NONE */
#define SEMEL_SETTING_ENV 64u      /* names of environment variables, not of HTTP headers */
#define SEMEL_SETTING_FOR_SQL 128u /* `semel init` writes it for a statement only */
#define SEMEL_SETTING_NOT 256u     /* the field holds the opposite of the flag */
#define SEMEL_SETTING_VISIBLE 512u /* ASCII without blanks */

struct semel_setting_group;

/* PAIRS whose names are somebody's own. */
struct semel_setting_names {
    const char *whose; /* librdkafka */
    size_t (*all)(const char *const **ret_names);
    semel_status (*takes)(const char *name, const char *value, struct semel_error *err); /* err may quote the value */
};

struct semel_setting_spec {
    const char *name;
    enum semel_setting_kind kind;
    unsigned flags;
    size_t offset, size;
    int64_t low, high;                                /* NUMBER, TIME; of texts: bytes, 0: the least and the most */
    const char *const *words;                         /* WORD: by value; URL: schemes; ended by NULL */
    const char *default_text, *default_note;          /* as it would be written; where it is computed, in words */
    const char *member;                               /* MEMBER */
    const struct semel_setting_group *group;          /* GROUP, ROUTES */
    const struct semel_setting_group *const *choices; /* ONE_OF: by value, ended by NULL */
    const struct semel_setting_names *names;          /* PAIRS; NULL: headers, or variables */
    const char *example;                              /* what `semel init` writes; NULL: it is only mentioned */
    const char *help;
};

struct semel_setting_group {
    const char *name; /* of a choice: the key that tells it */
    const struct semel_setting_spec *settings;
    size_t n;
};

#define SEMEL_SETTING_IN(type, field) .offset = offsetof(struct type, field), .size = sizeof(((struct type *)0)->field)
#define SEMEL_SETTING_RANGE(min, max) .low = (min), .high = (max)
#define SEMEL_SETTING_GROUP_OF(key, array)                                          \
    {                                                                               \
        .name = (key), .settings = (array), .n = sizeof(array) / sizeof((array)[0]) \
    }

/* ---- pieces ---- */

struct semel_setting_list {
    const struct semel_str *at;
    size_t n;
};

struct semel_setting_pairs {
    const struct semel_pair *at;
    size_t n;
};

/* Where to listen, as net/address.h reads it. */
struct semel_setting_address {
    struct semel_str text;  /* as it was given: for semel_http_settings */
    struct semel_str where; /* the same for the same socket, however it was given */
    bool local;             /* loopback or a unix socket: nobody else can reach it */
};

/* For who connects. `on` with nothing else: the system's authorities are trusted. */
struct semel_setting_tls {
    bool on;
    const char *ca_file, *cert_file, *key_file, *key_password;
    bool no_verify; /* neither the certificate nor the name is checked */
};

/* For who listens. */
struct semel_setting_tls_server {
    bool on;
    const char *cert_file, *key_file, *client_ca_file;
};

/* Routes may share an address; then their paths on it differ, and all else but the token is the same. */
struct semel_setting_server {
    struct semel_setting_address address;
    struct semel_str token;          /* visible ASCII; for admin it may be not given: nobody may change anything then */
    struct semel_setting_list hosts; /* names by which we are called, besides loopback and the address itself */
    bool plain;                      /* others reach it without TLS: a proxy terminates it */
    struct semel_setting_tls_server tls;
};

extern const struct semel_setting_group semel__setting_tls, semel__setting_tls_server;

#define SEMEL_SETTING_TLS(type) SEMEL_SETTING_TLS_AT(type, tls)
#define SEMEL_SETTING_TLS_AT(type, field)                                                \
    {                                                                                    \
        "tls", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(type, field), \
            .group = &semel__setting_tls, .help = "encrypt the connection"               \
    }
/* What every listener has besides its address and its paths. */
#define SEMEL_SETTING_TOKEN(type, required, what)                                               \
    {                                                                                           \
        "token", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET | SEMEL_SETTING_VISIBLE | (required), \
            SEMEL_SETTING_IN(type, server.token), SEMEL_SETTING_RANGE(16, 1024),                \
            .help = (what), .example = (required) != 0 ? "${SEMEL_TOKEN}" : NULL                \
    }
#define SEMEL_SETTING_HOSTS(type)                                                                           \
    {                                                                                                       \
        "hosts", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(type, server.hosts), SEMEL_SETTING_RANGE(1, 255), \
            .help = "names by which we are called, besides loopback names and the address itself"           \
    }
#define SEMEL_SETTING_PLAIN(type)                                                 \
    {                                                                             \
        "plain", SEMEL_SETTING_FLAG, 0, SEMEL_SETTING_IN(type, server.plain),     \
            .default_text = "false", .help = "plain HTTP; a proxy terminates TLS" \
    }
#define SEMEL_SETTING_TLS_SERVER(type)                                                        \
    {                                                                                         \
        "tls", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(type, server.tls), \
            .group = &semel__setting_tls_server,                                              \
            .help = "answer with TLS; required unless loopback, unix socket or `plain: true`" \
    }

/* ---- what one setting says against another ---- */

/* How a check sees the mapping that its settings stand in, and where it reports. `setting` is "tls.ca_file". */
struct semel_setting_check {
    const char *path;       /* of the mapping: "routes.billing.from"; texts begin with it */
    struct semel_str route; /* the name of the route */
    bool transactional;     /* the effect of the route is in the store's own transaction */
    bool (*given)(const struct semel_setting_check *check, const char *setting);
    /* As the file has it, never with what came from outside it: for a mistake, for a sentence. */
    void (*show)(const struct semel_setting_check *check, const char *setting, char *out, size_t size);
    void (*put)(const struct semel_setting_check *check, const char *setting, struct semel_buf *buf);
    const char *(*keep)(const struct semel_setting_check *check, const char *text); /* NULL: no memory */
    void (*wrong)(const struct semel_setting_check *check, const char *setting, const char *text);
};

__attribute__((format(printf, 3, 4))) void semel__setting_wrong(const struct semel_setting_check *check,
                                                                const char *setting, const char *fmt, ...);
/* Is the URL's scheme this one? */
bool semel__setting_scheme(struct semel_str url, const char *scheme);
void semel__setting_check_tls(const struct semel_setting_check *check, const struct semel_setting_tls *tls);
/* TLS follows from the URL's scheme, `plain` or the same with an s; `tls` says how. */
void semel__setting_check_tls_url(const struct semel_setting_check *check, const char *plain, struct semel_str url,
                                  struct semel_setting_tls *tls);
/* What others can reach is encrypted, unless the settings allow it. `setting` is the address. */
void semel__setting_check_reach(const struct semel_setting_check *check, const char *setting,
                                const struct semel_setting_server *server);
/* The path of a route, called like it when it is not given. */
void semel__setting_check_path(const struct semel_setting_check *check, struct semel_str *path);

#endif
