/* SPDX-License-Identifier: MIT
 *
 * private.h: what the files of conf share: the tree of a file, the table of the settings, and the reader that walks one
 * along the other.
 *
 * Invariants: a place is an offset into the text, so that every file counts lines and columns by the same function. A
 * node that is `bad` has had its mistake told and is not looked at again. Reading goes on after a mistake; it ends
 * early only for lack of memory (`failed`).
 */
#ifndef SEMEL_CONF_PRIVATE_H
#define SEMEL_CONF_PRIVATE_H

#include "conf/conf.h"

#define CONF_DEPTH_MAX 16
#define CONF_NODES_MAX 20000
#define CONF_SETTINGS_MAX 40 /* of one mapping */
#define CONF_PATH_MAX 600
#define CONF_SECRET_MAX 65536
#define CONF_TEXT_MAX 4096 /* of a value, where the table says nothing else */
#define CONF_ARENA_MAX ((size_t)64 << 20)

#define CONF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- the tree ---- */

enum conf_shape { CONF_SCALAR, CONF_MAPPING, CONF_LIST };

struct conf_place {
    size_t at, n; /* bytes of the text */
};

struct conf_node {
    enum conf_shape shape;
    bool plain;                  /* a scalar without quotes: it may be a number or a flag */
    bool bad;                    /* its mistake has been told */
    bool outside;                /* its text, or a part of it, came from elsewhere and is never shown */
    struct semel_str text, said; /* of a scalar: what it means, and as the file has it */
    struct semel_str key;        /* in a mapping */
    struct conf_place place, key_place;
    struct conf_node *first, *next;
};

/* ---- the table ---- */

enum conf_kind {
    CONF_TEXT,
    CONF_WORD,
    CONF_NUMBER,
    CONF_TIME,
    CONF_FLAG,
    CONF_RULE,    /* where a field of the message is */
    CONF_RULES,   /* one or several */
    CONF_TEXTS,   /* one text or a list */
    CONF_PAIRS,   /* names with texts */
    CONF_ADDRESS, /* where to listen */
    CONF_URL,
    CONF_FILE,
    CONF_PROGRAM, /* an argument vector; the file of its first word stands behind it */
    CONF_MEMBER,  /* core/consumer.h knows it */
    CONF_GROUP,
    CONF_ONE_OF, /* a mapping of one of several kinds, told apart by a key */
    CONF_ROUTES
};

#define CONF_REQUIRED 1u
#define CONF_SECRET 2u    /* stands not in the file; NAME_file may be said instead */
#define CONF_LITERAL 4u   /* a secret that may stand in the file as long as no password is in it */
#define CONF_LINES 8u     /* a text of several lines */
#define CONF_SWITCH 16u   /* a group that begins with a bool which says that it is there; `true` is short for {} */
#define CONF_FOREVER 32u  /* a time that may be `forever`: SEMEL_NONE */
#define CONF_ENV 64u      /* names of environment variables, not of HTTP headers */
#define CONF_KAFKA 256u   /* names of librdkafka's properties */
#define CONF_VISIBLE 512u /* ASCII without blanks */
#define CONF_FOR_SQL 128u /* `semel init` writes it for a statement only */

struct conf_group;

struct conf_setting {
    const char *name;
    enum conf_kind kind;
    unsigned flags;
    size_t offset, size;
    int64_t low, high;                       /* NUMBER, TIME; of texts: bytes, 0: 1 to CONF_TEXT_MAX */
    const char *const *words;                /* WORD: by value; URL: schemes; ended by NULL */
    const char *other, *other_says;          /* the default as it would be written; where it is computed, in words */
    const char *member;                      /* MEMBER */
    const struct conf_group *group;          /* GROUP, ROUTES */
    const struct conf_group *const *choices; /* ONE_OF: by value, ended by NULL */
    const char *example;                     /* what `semel init` writes; NULL: it is only mentioned */
    const char *help;
};

struct conf_group {
    const char *name; /* of a choice: the key that tells it */
    const struct conf_setting *settings;
    size_t n;
};

extern const struct conf_group semel__conf_root;
extern const struct conf_group *const semel__conf_sources[], *const semel__conf_handlers[];
/* What core knows and no setting says, because it follows from others: effect, order. Ended by NULL. */
extern const char *const semel__conf_derived[];

/* ---- the reader ---- */

struct conf_secret;

/* What is given out and freed as one. */
struct conf_owned {
    struct semel_conf conf; /* the first: a semel_conf is freed by its address */
    struct semel_arena arena;
    struct conf_secret *secrets;
};

struct conf_said {
    const char *member;
    struct conf_node *node;
    const struct conf_setting *setting;
    char path[96]; /* below the route: "retry.max" */
};

struct conf_reader {
    const struct semel_conf_input *input;
    struct conf_owned *owned;
    struct semel_conf_mistakes *mistakes;
    struct conf_node *tree, **routes; /* the nodes of the routes, as in conf->routes */
    size_t nodes;
    char path[CONF_PATH_MAX];
    size_t route_path; /* how much of the path names the route */
    struct conf_said said[CONF_SETTINGS_MAX];
    size_t n_said;
    bool failed; /* no memory */
};

/* mistake.c. The path is the reader's. */
__attribute__((format(printf, 3, 4))) void semel__conf_wrong(struct conf_reader *r, struct conf_place place,
                                                             const char *fmt, ...);
/* The same below the reader's path. */
__attribute__((format(printf, 4, 5))) void semel__conf_wrong_at(struct conf_reader *r, struct conf_place place,
                                                                const char *below, const char *fmt, ...);
/* Where the mistakes of a node are shown: at its key where it begins on another line or is empty. */
struct conf_place semel__conf_place(const struct conf_reader *r, const struct conf_node *node);
/* The offset of a line and column, both from 1. */
size_t semel__conf_offset(struct semel_str text, int line, int column);
/* Is there a password in it? */
bool semel__conf_password(struct semel_str url);

/* read.c */
/* A file name as it is seen from the folder of the settings; false: no memory. */
bool semel__conf_resolve(struct conf_reader *r, struct semel_str name, struct semel_str *ret);
/* The node at "keep.completed" below a mapping; where there is none, the deepest that there is on the way. */
const struct conf_node *semel__conf_find(const struct conf_node *node, const char *path);

/* value.c: one value into its place; false: the mistake has been told. */
bool semel__conf_take(struct conf_reader *r, const struct conf_setting *setting, struct conf_node *node, void *at);
/* "90" or "\"a b\"" or "a list", for a mistake; nothing of what came from outside. */
void semel__conf_show(const struct conf_node *node, char *out, size_t size);
/* "a duration, 1ms to 1d" */
void semel__conf_type(const struct conf_setting *setting, char *out, size_t size);
/* "PATH is VALUE; it must be RIGHT" */
void semel__conf_must(struct conf_reader *r, const struct conf_node *node, const char *right);
bool semel__conf_url_local(struct semel_str url); /* SCHEME://HOST...: is the host this machine? */
bool semel__conf_hosts_ok(struct semel_str list); /* HOST:PORT,HOST:PORT */

/* route.c: what one setting says of another. */
/* A text of core's with the names that the file has for its members. */
void semel__conf_translate(const char *text, char *out, size_t size);
void semel__conf_policy(struct conf_reader *r, struct semel_route *route, const struct conf_node *node);
void semel__conf_route(struct conf_reader *r, struct semel_route *route, const struct conf_node *node);
void semel__conf_between(struct conf_reader *r);

/* promise.c */
void semel__conf_promise(struct conf_reader *r, struct semel_route *route, const struct conf_node *node);

#endif
