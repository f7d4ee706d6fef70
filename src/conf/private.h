/* SPDX-License-Identifier: MIT
 *
 * private.h: what the files of conf share: the tree of a file, the table of the settings, and the reader that walks one
 * along the other.
 *
 * Invariants: a place is an offset into the text, so that every file counts lines and columns by the same function. A
 * node that is `bad` has had its mistake reported and is not looked at again. Reading goes on after a mistake; it ends
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
    bool bad;                    /* its mistake was reported; not tainted: its key is a strange one */
    bool tainted;                /* it, or something below it, has a mistake */
    bool outside;                /* its text, or a part of it, came from elsewhere and is never shown */
    struct semel_str text, said; /* of a scalar: what it means, and as the file has it */
    struct semel_str key;        /* in a mapping */
    struct conf_place place, key_place;
    struct conf_node *first, *next;
};

/* ---- the table ---- */

extern const struct semel_setting_group semel__conf_root;
extern const struct semel_setting_group *const semel__conf_handlers[];
/* The i-th choice of a setting that is one of several kinds; NULL: there are no more. */
const struct semel_setting_group *semel__conf_choice(const struct semel_setting_spec *setting, size_t i);
/* A choice with one word and nothing else to set: its name alone says all (`from: inbox`). */
bool semel__conf_bare(const struct semel_setting_group *choice);
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
    const struct semel_setting_spec *setting;
    char path[96]; /* below the route: "retry.max" */
};

struct conf_reader {
    const struct semel_conf_input *input;
    struct conf_owned *owned;
    struct semel_conf_mistakes *mistakes;
    struct conf_node *tree, **routes; /* the nodes of the routes; NULL: not to be compared with others */
    struct conf_node **partly;        /* the nodes of all routes that are mappings */
    struct conf_node **outboxes;      /* the nodes of all outboxes; NULL: it is no mapping */
    struct conf_node **gateways;      /* the same of the gateways */
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
/* May it be judged? It has no mistake, or it is not given and no strange key beside it may be meant for it. */
bool semel__conf_sound(const struct conf_node *node, const char *path);

/* value.c: one value into its place; false: the mistake was reported. */
bool semel__conf_parse(struct conf_reader *r, const struct semel_setting_spec *setting, struct conf_node *node,
                       void *at);
/* "90" or "\"a b\"" or "a list", for a mistake; nothing of what came from outside. */
void semel__conf_show(const struct conf_node *node, char *out, size_t size);
/* "a duration, 1ms to 1d" */
void semel__conf_type(const struct semel_setting_spec *setting, char *out, size_t size);
/* "PATH is VALUE; it must be RIGHT" */
void semel__conf_must(struct conf_reader *r, const struct conf_node *node, const char *right);

/* route.c: what one setting says of another. */
/* A text of core's with the names that the file has for its members. */
void semel__conf_translate(const char *text, char *out, size_t size);
void semel__conf_policy(struct conf_reader *r, struct semel_route *route, const struct conf_node *node);
void semel__conf_route(struct conf_reader *r, struct semel_route *route, const struct conf_node *node);
/* What routes say of each other, of the store and of admin, and outboxes of each other. */
void semel__conf_between(struct conf_reader *r);
/* Does the URL call another host without TLS? */
bool semel__conf_exposed(struct semel_str url);
/* The first listener of a route that has this address: "routes.billing.from.listen"; NULL: there is none. */
const char *semel__conf_listens(const struct conf_reader *r, const struct semel_setting_server *server, char *out,
                                size_t size);

/* gateway.c */
void semel__conf_gateways(struct conf_reader *r);

#endif
