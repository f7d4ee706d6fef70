/* SPDX-License-Identifier: MIT
 *
 * relay_fake.h: relays on an outbox in memory with 64 shards, whose starting points must be proven, and on a sink that
 * does as it is told. Every call is noted and may fail. No server is needed.
 */
#ifndef SEMEL_TEST_RELAY_FAKE_H
#define SEMEL_TEST_RELAY_FAKE_H

#include "base/error.h"
#include "core/relay.h"
#include "core/starts.h"
#include "unit/unit.h"

#define SECOND INT64_C(1000000)
#define T0 INT64_C(1700000000000000)
#define ROWS_MAX 700
#define PEERS_MAX 4
#define SET(array, text) snprintf(array, sizeof array, "%s", text)

struct row {
    bool there, aside, alone;
    int64_t shard, seq, attempts, due_us, relay, size, created_us;
    char id[24], key[16], type[16], to[16], status[16], error[64];
};

/* What is stored. A transaction that is rolled back restores it. */
struct db {
    struct row rows[ROWS_MAX];
    size_t n;
    struct semel_relay_shard shards[SEMEL_RELAY_SHARDS];
    struct {
        int64_t token, until_us;
        struct semel_str owner, destinations;
        char down[SEMEL_RELAY_WHY];
    } peers[PEERS_MAX];
    size_t n_peers;
};

extern struct db db;

/* What the rest of the world does, and what it saw of the relay. */
struct fake_world {
    int64_t now_us, steady_us, started_us, seq;
    struct semel_relay_holder holders[2];
    size_t n_holders;
    bool hidden;           /* transactions are not visible */
    bool large;            /* scans had large events */
    bool no_ahead;         /* there is no memory for reading ahead */
    size_t purges;         /* what a purge deletes */
    void (*at_read)(void); /* what others do before each scan; may be NULL */
    int fail_at;           /* the call of the store that fails; 0: none */
    semel_status fail;
    int calls;
    const char *failed; /* the name of that call */
    char trace[4096];
    struct semel_relay_scan scan; /* the last one */
    int64_t scan_starts[SEMEL_RELAY_SHARDS];
    int64_t purge_before_us;
    bool keep;
    struct semel_relay_scan *ahead;
    int tends;
    size_t kept, scanned;
    char reported[2048];
    int64_t published_us;
};
extern struct fake_world world;

struct fake_sink {
    struct semel_broker base;
    struct semel_broker_ops ops;
    semel_status status; /* of a call */
    const char *refuse, *down, *down_too, *unknown, *later;
    size_t calls, n; /* n: of the last call */
    int timeout_ms, reopened;
    char got[8192];
    void (*during)(void);
};
extern struct fake_sink sink;

struct handle {
    struct semel_store base;
    struct semel_store_ops ops;
};

extern struct handle handles[PEERS_MAX];
extern struct semel_relay_ops relay_ops;
extern struct semel_relay *relays[PEERS_MAX];
extern struct semel_relay_options options;
extern struct semel_error trouble;

void make_relay(size_t i);
void begin_again(void);
void let_read_ahead(void); /* the store can read while a call is on its way */
int up(void **state);
int down(void **state);
void pass(int64_t us);
struct row *put(const char *key, const char *type, const char *to);
int step_of(size_t i);
size_t left(void);
const struct semel_relay_counts *counts(void);
size_t owned_by(size_t i);
void delete_peer(size_t i);

#endif
