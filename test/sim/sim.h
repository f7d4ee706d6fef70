/* SPDX-License-Identifier: MIT
 *
 * sim.h: the simulator: core on the in-memory drivers, one seed a whole run, re-run exactly.
 *
 * A world is one run: a virtual clock, one database, one queue, up to four workers and two operators, each a fiber.
 * Before every operation of a store or a broker, and at every labelled point, an actor may be left for another one,
 * stalled, killed or given an error. First comes the chaos, then a quiet phase without faults in which everything has
 * to come to its end.
 *
 *   scene.c   what the seed says: route, messages, faults       worker.c    an actor's life
 *   world.c   the clock, the queue's side, who runs next        handler.c   what handlers do
 *   faults.c  what goes wrong before an operation, at a point   operator.c  people and reconciles
 *   watch.c   what must hold after every commit                 verify.c    what must hold in the end
 *   leased.c  workers that claim and have others run it         fiber.c     several actors on one thread
 *   ticker.c  other sessions that only tick                     past.c      backups and restores
 *   settings.c  who says what the consumer promises             main.c      seeds, processes, counters
 *
 * Invariants: everything random comes from world->rng, everything timed from world->now_us, and nothing depends on an
 * address, so the same seed gives the same run in every build.
 */
#ifndef SEMEL_SIM_SIM_H
#define SEMEL_SIM_SIM_H

#include "base/error.h"
#include "base/ids.h"
#include "base/point.h"
#include "base/random.h"
#include "base/str.h"
#include "support/mem_broker.h"
#include "core/consumer.h"
#include "core/pump.h"
#include "fiber.h"
#include "support/mem_store.h"

#define SIM_WORKERS 4
#define SIM_OPERATORS 2
#define SIM_TICKERS 3
#define SIM_ACTORS (SIM_WORKERS + SIM_OPERATORS + SIM_TICKERS)
#define SIM_EVENTS 60
#define SIM_KEYS 8
#define SIM_SLOTS 6
#define SIM_CALLS 256
#define SIM_RESTORES_MAX 3
#define SIM_TOKENS 4096

#define SIM_MS INT64_C(1000)
#define SIM_SECOND (1000 * SIM_MS)
#define SIM_HOUR (3600 * SIM_SECOND)

/* ---- counters: what really happened over all seeds ---- */

#define SIM_COUNT_MAP(X)                    \
    X(SEEDS, "seeds")                       \
    X(MESSAGES, "messages")                 \
    X(DELIVERIES, "deliveries")             \
    X(OPERATIONS, "operations")             \
    X(COMMITS, "commits")                   \
    X(EFFECTS, "effects")                   \
    X(CRASHES, "crashes")                   \
    X(KILLED, "killed by messages")         \
    X(STALLS, "stalls")                     \
    X(BROKEN_TX, "broken transactions")     \
    X(EXPELLED, "expelled")                 \
    X(STORE_ERRORS, "store errors")         \
    X(CLOSED, "lost connections")           \
    X(UNKNOWN_DONE, "unknown commits done") \
    X(UNKNOWN_LOST, "unknown commits lost") \
    X(QUEUE_ERRORS, "broker errors")        \
    X(LOST_ACKS, "lost acks")               \
    X(REDELIVERED, "redelivered")           \
    X(CONFLICTS, "conflicts")               \
    X(JUMPS, "clock jumps")                 \
    X(BACKWARD, "backward jumps")           \
    X(SUPPRESSED, "duplicates suppressed")  \
    X(BUSINESS, "business duplicates")      \
    X(KEYED_REPEATS, "repeats by key")      \
    X(FENCED, "fenced completions")         \
    X(RECOVERED, "recovered leases")        \
    X(RETRIES, "retries")                   \
    X(DISCARDS, "discards")                 \
    X(RESOLVES, "resolves")                 \
    X(LATE_ORDERS, "late commands")         \
    X(REFUSED, "refused retries")           \
    X(UNKNOWNS, "unknown outcomes")         \
    X(DEAD, "dead letters")                 \
    X(REJECTED, "rejected")                 \
    X(GAPS, "gaps")                         \
    X(STALE, "stale")                       \
    X(BLOCKED, "blocked")                   \
    X(PARKED_FULL, "parking full")          \
    X(PURGED, "purged")                     \
    X(QUARANTINED, "quarantined")           \
    X(CUTS, "cut batches")                  \
    X(BLAMED, "blamed in their batch")      \
    X(OUTLASTED, "outlasted leases")        \
    X(CLAIMED, "claimed by the pump")       \
    X(TAKEN, "taken by the pump")           \
    X(CALLS_MADE, "calls")                  \
    X(ORPHANS, "calls without a worker")    \
    X(LATE_EFFECTS, "late effects")         \
    X(RENEWED, "renewed leases")            \
    X(LOST_LEASES, "lost leases")           \
    X(RELEASED, "leases given back")        \
    X(FINISHED, "ends by the pump")         \
    X(HELD_OVER, "ends tried again")        \
    X(PUT, "stored to be taken")            \
    X(HAND_RUN, "run by hand")              \
    X(TICKS, "ticks of other sessions")     \
    X(SITTERS, "open transactions")         \
    X(SWEPT, "swept heads")                 \
    X(BACKUPS, "backups")                   \
    X(RESTORES, "restores")                 \
    X(FORGOTTEN, "forgotten claims")        \
    X(FOREGONE, "effects of a lost future") \
    X(SETTINGS, "settings changed")         \
    X(SET_REFUSED, "settings refused")      \
    X(SET_SAME, "settings as they were")    \
    X(FILE_REFUSED, "files refused")        \
    X(PAUSED, "workers held")               \
    X(WENT_ON, "workers let go on")         \
    X(HOUSES, "houses kept")                \
    X(STOPPED, "stopped processes")

enum sim_count {
#define X(name, text) SIM_##name,
    SIM_COUNT_MAP(X)
#undef X
        SIM_COUNTS
};

/* ---- the scene ---- */

enum sim_kind {
    SIM_GOOD,
    SIM_FLAKY,    /* fails transiently a few times */
    SIM_STUBBORN, /* fails permanently a few times: a retry heals it */
    SIM_POISON,   /* always fails */
    SIM_KILLER,   /* kills its worker whenever its handler runs */
    SIM_REJECT,   /* the business says no */
    SIM_UNSURE,   /* says MAYBE a few times, with or without the effect */
    SIM_SLOW      /* outlasts its lease a few times */
};

struct sim_event {
    char id[SEMEL_UUID_TEXT], source[2], key_text[8], business_text[8], version_text[24], payload[16];
    int n, key, business; /* business -1: the route has none */
    int64_t version;
    enum sim_kind kind;
    int trouble; /* how often it still misbehaves */
    bool transient;
    int64_t push_at_us;
    bool pushed;
    size_t number; /* in the queue */

    /* what is known of it */
    int effects, starts;
    bool there; /* a committed row is there, as below */
    enum semel_row_status state;
    bool gap;    /* it waits for versions that are missing */
    bool kept;   /* its payload is stored */
    bool judged; /* the last commit made it stale, or had it wait for or die of missing versions */
    int attempts, attempts_before, retries;
    int64_t token, lease_until_us, processed_us, updated_us;
    int64_t arrival; /* of its row */
    enum semel_class error_class;
    int owner, owner_incarnation; /* the actor that holds the lease, or -1 */
    uint64_t mark;                /* of the last look at which its row was there */
    uint64_t held[SIM_ACTORS];    /* the actor's serial when it last held the lease */
    uint64_t ended;               /* the look at which it was seen to be final */
    uint64_t claimed[SIM_ACTORS]; /* the look at which the actor's last claim of it was seen */
    bool foregone;                /* it took effect outside in a future that a restore took back */
    bool was_final;               /* a final row was there and was purged */
    bool was_completed;           /* and it was completed */
    bool alone;                   /* its lease is that of a message which runs by itself */
    bool prevented;               /* ever */
    bool doubted;                 /* it was stale after it had begun, ever: its row may have gone since */
    bool contradicted;            /* the same id was sent with another payload */
    bool usurped;                 /* the same after a restore: the row may be the other one's */
    bool superseded;              /* its retry was refused because of its business key */
    bool keyed, versioned;        /* its row has an order key, and a version */
    bool ordered;                 /* it was claimed by one that goes by an order */
    bool outside;                 /* its effect was outside */
};

/* How a worker lives. */
enum sim_life {
    SIM_STEPS,  /* step and tick: the handler runs within the pump's call */
    SIM_LEASES, /* claims and takes, has somebody else run it, renews, commits the ends */
    SIM_HANDS   /* stores what comes; takes by hand, renews, gives back, runs */
};

/* Who says what the consumer promises. */
enum sim_settings {
    SIM_FIXED,   /* nobody: nothing is stored, and everybody has the same */
    SIM_PERSONS, /* people, who change their minds; workers read what is stored */
    SIM_FILES    /* the files of the workers, of which there are two */
};

/* Chances in a thousand. */
struct sim_faults {
    unsigned yield, yield_in_tx, crash, point_crash, stall, retry, close, unknown, queue_error, queue_close, lost_ack;
    unsigned redeliver, conflict, jump, backward, big_jump, handler_stall, handler_world;
    unsigned backup, restore, sit, set;
};

struct sim_scene {
    int n_workers, n_operators, n_tickers, n_events, n_keys;
    enum sim_life lives[SIM_WORKERS];
    enum semel_queue_mode mode;
    size_t partitions;
    bool business, set, purge, two_sources;
    size_t batch_max;
    int64_t chaos_us;
    struct semel_policy policy, files[2];
    enum sim_settings settings;
    struct sim_faults faults;
};

/* ---- the world ---- */

struct sim_world;

struct sim_ending {
    enum semel_result result;
    bool effect;
};

/* Somebody who was asked to have an effect. He may go on when the worker that asked him is gone. */
struct sim_call {
    struct sim_event *event;
    bool open, ended;
    bool orphan; /* nobody waits for the answer */
    int actor, incarnation;
    uint64_t born; /* the look at which its claim was seen */
    bool keyed;
    enum semel_order order;
    int64_t end_us; /* by the steady clock */
    struct sim_ending ending;
};

enum sim_slot_state { SIM_SLOT_FREE, SIM_SLOT_CALLS, SIM_SLOT_ENDED, SIM_SLOT_UNTOUCHED };

struct sim_slot {
    enum sim_slot_state state;
    struct semel_arena arena;
    struct semel_lease lease;
    struct semel_ending ending;
    struct sim_call *call;
    int64_t renew_us;
};

enum sim_role { SIM_WORKER, SIM_OPERATOR, SIM_TICKER };

struct sim_actor {
    struct sim_world *world;
    enum sim_role role;
    enum sim_life life;
    int number;
    struct fiber *fiber;
    bool alive;      /* handles are open, the fiber is not done */
    bool dead;       /* crashed: every operation answers CLOSED from now on */
    bool atomic;     /* is not left now */
    bool ending;     /* is about to commit or to roll back */
    bool lost;       /* the server ended its transaction; until it connects anew */
    bool cut;        /* its connection is gone; until then, too */
    uint64_t serial; /* one more with each turn of its loop and with each incarnation */
    int incarnation;
    char owner[32];
    uint64_t left;          /* how often it was left for another one */
    uint64_t left_at_begin; /* the same, when it last began a transaction */
    int64_t wake_us;        /* is not run before */
    int64_t break_at_us;    /* SEMEL_NONE, or when the server ends its idle transaction */
    int64_t expel_at_us;    /* the same for the broker */
    struct semel_store *store;
    struct semel_broker *broker;
    struct semel_inbox inbox;
    struct semel_pump pump;
    struct semel_policy policy; /* as it reads its settings */
    struct semel_rules rules;
    int file;
    bool stored; /* the settings of its file */
    bool held;   /* its settings are not those that are stored */
    int64_t ask_us;
    struct semel__handler handler;
    struct sim_slot slots[SIM_SLOTS]; /* not of one that steps */
    struct semel_arena arena;         /* of what was claimed last */
    int n_slots;
};

/* What is known of a database at the moment of its backup. */
struct sim_past {
    struct semel_mem_db *db; /* NULL: there is none */
    struct sim_event events[SIM_EVENTS];
    uint64_t look;
    size_t effects_seen;
    int64_t last_arrival[SIM_KEYS], last_stored[SIM_KEYS], last_version[SIM_KEYS];
    int business_effects[SIM_EVENTS];
};

struct sim_world {
    uint64_t seed;
    bool verbose;
    const char *program;
    struct semel_random rng;
    int64_t now_us, jumped_us; /* the clock, and how far it is from a steady one */
    struct semel_clock clock;
    struct sim_scene scene;
    struct sim_event events[SIM_EVENTS];
    struct semel_mem_db *db;
    struct semel_mem_queue *queue;
    struct sim_actor actors[SIM_ACTORS];
    int n_actors;
    struct sim_call calls[SIM_CALLS];
    bool quiet, stopping;
    struct sim_actor *committed; /* who has just committed: to be looked at before anything else happens */
    uint64_t looks;
    size_t effects_seen;                                    /* of the database's list */
    int64_t last_arrival[SIM_KEYS], last_version[SIM_KEYS]; /* the event, and the version, whose effect came last */
    int64_t last_stored[SIM_KEYS];                          /* the arrival of its row */
    int business_effects[SIM_EVENTS];
    int to_push; /* the first event that is not pushed yet */
    struct sim_past past;
    struct {
        uint64_t from, at; /* what was seen after one look, up to the other, is forgotten */
    } restores[SIM_RESTORES_MAX];
    int n_restores;
    int64_t tokens[SIM_TOKENS]; /* all that were ever seen */
    size_t n_tokens, n_chances;
    struct semel_store *eye;  /* to look at settings */
    unsigned effects, orders; /* a bit for each that was ever in use */
    int cap;                  /* the most attempts that were ever allowed */
    bool reordered;           /* versions have begun, ended, or have another first */
    uint64_t counts[SIM_COUNTS];
};

bool sim_chance(struct sim_world *world, unsigned per_mille);
int64_t sim_between(struct sim_world *world, int64_t low, int64_t high); /* both included */
__attribute__((format(printf, 2, 3))) void sim_trace(const struct sim_world *world, const char *fmt, ...);
/* An invariant is broken: says which, in which scene and how to see it again, and ends the process with 1. */
__attribute__((format(printf, 3, 4), noreturn)) void sim_broken(const struct sim_world *world, const char *invariant,
                                                                const char *fmt, ...);

/* scene.c */
void sim_scene_draw(struct sim_world *world);
void sim_scene_describe(const struct sim_world *world, char *out, size_t size);

/* world.c */
void sim_redeliver(struct sim_world *world, struct sim_event *event);
void sim_run(struct sim_world *world, struct fiber **fibers, uint64_t seed);

/* faults.c */
enum semel_mem_fault sim_store_hook(void *ctx, const char *op);
enum semel_queue_fault sim_broker_hook(void *ctx, const char *op);
void sim_point_hook(void *ctx, enum semel_point point);
void sim_point_actor(struct sim_actor *actor); /* whose points these are */
/* An operation of a handler: the actor may be left, stalled or killed. */
void sim_pause(struct sim_actor *actor, const char *what);
void sim_stall(struct sim_actor *actor, int64_t for_us);

/* leased.c */
void sim_leased_main(void *arg);
void sim_hands_main(void *arg);
void sim_slots_open(struct sim_actor *actor);
void sim_slots_close(struct sim_actor *actor);
void sim_calls_end(struct sim_world *world); /* those whose time has come */
int64_t sim_calls_next(const struct sim_world *world);

/* worker.c */
void sim_report(const struct sim_actor *actor, const char *what, semel_status status, size_t n,
                const struct semel_error *err);
void sim_actor_open(struct sim_actor *actor);
void sim_actor_close(struct sim_actor *actor);
void sim_worker_main(void *arg);

/* ticker.c */
void sim_ticker_main(void *arg);

/* settings.c */
void sim_settings_open(struct sim_world *world);
void sim_settings_close(struct sim_world *world);
void sim_settings_of(struct sim_actor *actor); /* as it begins */
/* A schedule round: reads, stores or compares. false: nothing is to be begun now. */
bool sim_settings_round(struct sim_actor *actor);
void sim_keep_house(struct sim_actor *actor); /* of one that is held */
void sim_person_sets(struct sim_actor *actor);
enum semel_effect sim_stored_effect(struct sim_world *world);
void sim_stop_all(struct sim_world *world); /* every process but the operators' */

/* past.c */
void sim_backup(struct sim_world *world);
void sim_restore(struct sim_world *world);
void sim_past_done(struct sim_world *world);
bool sim_forgotten(const struct sim_world *world, uint64_t look); /* a restore took back what was seen at that look */

/* operator.c */
void sim_operator_main(void *arg);

/* handler.c */
struct sim_ending sim_outcome(struct sim_world *world, struct sim_event *event);
/* `born`: the look at which the claim was seen. */
void sim_effect_outside(struct sim_world *world, struct sim_event *event, bool keyed, bool late, uint64_t born,
                        enum semel_order order);
bool sim_misbehaves(struct sim_event *event);
void sim_kill_worker(struct sim_actor *actor, struct sim_event *event);
struct sim_event *sim_event_whole(struct sim_actor *actor, const struct semel__msg *msg); /* as it was sent */
void sim_check_lease(const struct sim_actor *actor, const struct sim_event *event);
semel_status sim_handle_each(void *ctx, struct semel_store *store, const struct semel__msg *msg, int attempt,
                             struct semel__reply *reply, struct semel_error *err);
semel_status sim_handle_set(void *ctx, struct semel_store *store, const struct semel__msg *const *msgs, size_t n,
                            struct semel_set *set, struct semel_error *err);

/* watch.c */
void sim_watch(struct sim_world *world); /* after a commit, before anybody else runs */
/* `late`: by a worker whose lease ran out meanwhile. `order`: by which it ran. */
void sim_note_effect(struct sim_world *world, struct sim_event *event, bool late, enum semel_order order);
struct sim_event *sim_event_of(struct sim_world *world, struct semel_str id); /* NULL: none of ours */
bool sim_nobody_holds(const struct sim_world *world, const struct sim_event *event);

/* verify.c */
bool sim_all_ended(struct sim_world *world);
void sim_verify(struct sim_world *world);

#endif
