/* SPDX-License-Identifier: MIT
 *
 * setting.h: the description of a setting, wherever it is declared, and parts that several settings share.
 *
 * Data only: the name of a setting, its values, its default, its help, and where in a struct its value goes. conf
 * reads files by these descriptions; docs/settings.md and `semel init` are generated from them.
 *
 * Invariants: the order of a group is that of the documentation. The first setting of a choice (`from: {kafka: ...}`)
 * has the choice's own name and is required. A default is written as a user would write it, and parsed by the same
 * functions. Parsed texts end with a NUL that is not counted; a setting that is not given and has no default is NULL
 * or {NULL, 0}. A text goes into a `const char *` or a struct semel_str, a number into a member of its size.
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
    SEMEL_SETTING_RULE,    /* the place of a field in the message */
    SEMEL_SETTING_RULES,   /* one or several */
    SEMEL_SETTING_TEXTS,   /* one text or a list */
    SEMEL_SETTING_PAIRS,   /* names with texts */
    SEMEL_SETTING_ADDRESS, /* where to listen */
    SEMEL_SETTING_URL,
    SEMEL_SETTING_FILE,
    SEMEL_SETTING_PROGRAM, /* an argument vector, followed by the file of its first word */
    SEMEL_SETTING_MEMBER,  /* described in core/consumer.h */
    SEMEL_SETTING_GROUP,
    SEMEL_SETTING_ONE_OF, /* a mapping of one of several kinds, told apart by a key */
    SEMEL_SETTING_SOURCE, /* the same of all kinds of brokers that are sources (broker/kind.h) */
    SEMEL_SETTING_SINK,   /* the same of all kinds that are sinks */
    SEMEL_SETTING_GROUPS, /* a list of mappings of one group: a pointer to items, and behind it their number */
    SEMEL_SETTING_ROUTES,
    SEMEL_SETTING_OUTBOXES,
    SEMEL_SETTING_GATEWAYS
};

#define SEMEL_SETTING_REQUIRED 1u
#define SEMEL_SETTING_SECRET 2u    /* not allowed in the file itself; NAME_file may be given instead */
#define SEMEL_SETTING_LITERAL 4u   /* a secret that is allowed in the file as long as it contains no password */
#define SEMEL_SETTING_LINES 8u     /* a text of several lines */
#define SEMEL_SETTING_SWITCH 16u   /* a group that begins with a bool: present or not; `true` is short for {} */
#define SEMEL_SETTING_FOREVER 32u  /* a time that may be `forever`: SEMEL_NONE */
#define SEMEL_SETTING_ENV 64u      /* names of environment variables, not of HTTP headers */
#define SEMEL_SETTING_FOR_SQL 128u /* `semel init` writes it for a statement only */
#define SEMEL_SETTING_NOT 256u     /* the member holds the opposite of the flag */
#define SEMEL_SETTING_VISIBLE 512u /* ASCII without blanks */
#define SEMEL_SETTING_HINT 1024u   /* the short form of `semel init` mentions it */

struct semel_setting_group;

/* PAIRS whose names another program defines. */
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
    int64_t low, high;                       /* NUMBER, TIME; of texts: bytes, 0: the least and the most */
    const char *const *words;                /* WORD: by value; URL: schemes; ended by NULL */
    const char *default_text, *default_note; /* as a user would write it; for a computed default, a description */
    const char *member;                      /* MEMBER */
    const struct semel_setting_group *group; /* GROUP, GROUPS, ROUTES and the like */
    size_t item_size;                        /* GROUPS: of one item */
    const struct semel_setting_group *const *choices; /* ONE_OF: by value, ended by NULL */
    const struct semel_setting_names *names;          /* PAIRS; NULL: headers, or variables */
    const char *example;                              /* written by `semel init`; NULL: only mentioned */
    const char *help;
};

struct semel_setting_group {
    const char *name; /* of a choice: the key that selects it */
    const struct semel_setting_spec *settings;
    size_t n;
};

#define SEMEL_SETTING_IN(type, field) .offset = offsetof(struct type, field), .size = sizeof(((struct type *)0)->field)
#define SEMEL_SETTING_RANGE(min, max) .low = (min), .high = (max)
#define SEMEL_SETTING_GROUP_OF(key, array)                                          \
    {                                                                               \
        .name = (key), .settings = (array), .n = sizeof(array) / sizeof((array)[0]) \
    }

/* ---- shared parts ---- */

struct semel_setting_list {
    const struct semel_str *at;
    size_t n;
};

struct semel_setting_pairs {
    const struct semel_pair *at;
    size_t n;
};

/* A listening address, parsed as by net/address.h. */
struct semel_setting_address {
    struct semel_str text;  /* as given: for semel_http_settings */
    struct semel_str where; /* equal for equal sockets, however they were written */
    bool local;             /* loopback or a unix socket: no other machine can reach it */
};

/* For clients. `on` with nothing else: the system's authorities are trusted. */
struct semel_setting_tls {
    bool on;
    const char *ca_file, *cert_file, *key_file, *key_password;
    bool no_verify; /* neither the certificate nor the name is checked */
};

/* For servers. */
struct semel_setting_tls_server {
    bool on;
    const char *cert_file, *key_file, *client_ca_file;
};

/* Routes may share an address; their paths then differ, and everything else except the token is equal. */
struct semel_setting_server {
    struct semel_setting_address address;
    struct semel_str token;          /* visible ASCII; may be missing: see each use */
    struct semel_setting_list hosts; /* our host names, besides loopback and the address itself */
    bool plain;                      /* reachable by others without TLS: a proxy terminates it */
    struct semel_setting_tls_server tls;
};

extern const struct semel_setting_group semel__setting_tls, semel__setting_tls_server;

#define SEMEL_SETTING_TLS(type) SEMEL_SETTING_TLS_AT(type, tls)
#define SEMEL_SETTING_TLS_AT(type, field)                                                \
    {                                                                                    \
        "tls", SEMEL_SETTING_GROUP, SEMEL_SETTING_SWITCH, SEMEL_SETTING_IN(type, field), \
            .group = &semel__setting_tls, .help = "encrypt the connection"               \
    }
/* The settings of every listener besides its address and its paths. */
#define SEMEL_SETTING_TOKEN(type, required, what)                                               \
    {                                                                                           \
        "token", SEMEL_SETTING_TEXT, SEMEL_SETTING_SECRET | SEMEL_SETTING_VISIBLE | (required), \
            SEMEL_SETTING_IN(type, server.token), SEMEL_SETTING_RANGE(16, 1024),                \
            .help = (what), .example = (required) != 0 ? "${SEMEL_TOKEN}" : NULL                \
    }
#define SEMEL_SETTING_HOSTS(type)                                                                           \
    {                                                                                                       \
        "hosts", SEMEL_SETTING_TEXTS, 0, SEMEL_SETTING_IN(type, server.hosts), SEMEL_SETTING_RANGE(1, 255), \
            .help = "host names of this server, besides loopback names and the address itself"              \
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

/* ---- checks of settings against each other ---- */

/* What a check knows about the mapping of its settings, and how it reports. `setting` is "tls.ca_file". */
struct semel_setting_check {
    const char *path;       /* of the mapping: "routes.billing.from"; texts begin with it */
    struct semel_str route; /* the name of the route */
    bool transactional;     /* the route's effect is in the store's own transaction */
    bool (*given)(const struct semel_setting_check *check, const char *setting);
    /* The value as written in the file, never a secret from outside it: for errors and for text. */
    void (*show)(const struct semel_setting_check *check, const char *setting, char *out, size_t size);
    void (*put)(const struct semel_setting_check *check, const char *setting, struct semel_buf *buf);
    const char *(*keep)(const struct semel_setting_check *check, const char *text); /* NULL: no memory */
    void (*wrong)(const struct semel_setting_check *check, const char *setting, const char *text);
};

__attribute__((format(printf, 3, 4))) void semel__setting_wrong(const struct semel_setting_check *check,
                                                                const char *setting, const char *fmt, ...);
/* Does the URL have this scheme? */
bool semel__setting_scheme(struct semel_str url, const char *scheme);
void semel__setting_check_tls(const struct semel_setting_check *check, const struct semel_setting_tls *tls);
/* TLS follows from the URL's scheme, `plain` or the same with an s; `tls` has the details. */
void semel__setting_check_tls_url(const struct semel_setting_check *check, const char *plain, struct semel_str url,
                                  struct semel_setting_tls *tls);
/* An address that others can reach needs TLS, unless the settings allow plain HTTP. `setting` is the address. */
void semel__setting_check_reach(const struct semel_setting_check *check, const char *setting,
                                const struct semel_setting_server *server);
/* The path of a route; its default is the route's name. */
void semel__setting_check_path(const struct semel_setting_check *check, struct semel_str *path);

#endif
