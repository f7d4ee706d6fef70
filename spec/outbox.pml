/* SPDX-License-Identifier: MIT
 *
 * outbox.pml: a Promela model of the outbox: draw, insert, commit; note, scan, look, publish, delete, move aside, take
 * over. docs/architecture.md, "Models", says what is left out and how to run it; test/spin/test_models.py runs it.
 *
 * An event is its number, 1 to EVENTS; a set of events, of transactions or of tokens is a byte with one bit for each.
 * There are two aggregates: the writers of A hold its lock, the writer of B draws early and commits late; and one
 * shard. Each transaction and each statement that reads is one step. Time is not modelled: a lease is over, a holder
 * stays too long and an event is due whenever the search wants it.
 *
 * What is verified, for each bound given below:
 *   - nothing is published that was not committed;
 *   - first occurrences are in order, whatever is killed, stopped past its lease, refused or unknown;
 *   - completeness: once the world has calmed down, each round of the owner of the shard brings an event further,
 *     until every committed event is published and both tables are empty; and nobody waits for ever;
 *   - without STOPS (no relay is stopped inside a call to the broker) an aggregate never goes back;
 *   - ONCE: where nothing fails, nothing comes twice.
 *
 * Macros that change the world: SINGLE_WRITER: a transaction is one step, so that numbers are in the order of commits
 * and nothing has to be proven (SQLite). STOPS: leases and clocks do not count: a lease may end while its relay is
 * inside a call, as if the process was stopped there, and a call may begin after it. RUNS: the sink takes consecutive
 * events of an aggregate in one request, whole or not at all. AHEAD: the same, and while a call is on its way the relay
 * deletes what the call before has confirmed, and reads on. BEHIND: the relay may look at the end of a round how far a
 * run of events of one aggregate reaches, and reads behind it, too, from then on. LATE: a request without an answer may
 * reach the broker at any later time. ORDER_ONLY: an aggregate may go back.
 * Macros that remove a guard have the prefix NO_. The model must fail with each of them.
 */
#ifndef A_PUTS
#define A_PUTS 1 /* events of the second writer of A; the first one puts one */
#endif
#ifndef B_PUTS
#define B_PUTS 1 /* events of the writer of B */
#endif
#define EVENTS (1 + A_PUTS + B_PUTS)
#ifndef FAILURES
#define FAILURES 1 /* relays that are killed, or lose their connection */
#endif
#ifndef EXPIRIES
#define EXPIRIES 1 /* leases that end before their time */
#endif
#ifndef REFUSALS
#define REFUSALS 1 /* by the broker */
#endif
#ifndef UNKNOWNS
#define UNKNOWNS 1 /* requests without an answer */
#endif
#ifndef TROUBLES
#define TROUBLES 1 /* rounds in which an aggregate has too many waiting events, or its destination is down */
#endif
#ifndef GIFTS
#define GIFTS 0 /* relays that leave by themselves */
#endif
#ifndef FORGETS
#define FORGETS 0
#endif
#ifndef ROWS
#define ROWS 2 /* that a scan reads at most */
#endif
#define SCANS 3
#ifdef AHEAD
#define RUNS
#endif
#define WRITERS 3

#define BIT(n) (1 << ((n) - 1))
#define BELOW(n) (BIT(n) - 1)
#define ALL BELOW(EVENTS + 1)
#define ABOVE(n) (ALL & ~(BIT(n) | BELOW(n)))
#define MATES(n) ((of_a & BIT(n)) -> of_a : (ALL & ~of_a)) /* the events of its aggregate */
#define AGGREGATE(n) ((of_a & BIT(n)) -> 1 : 2)
#define IN(set, n) (((set) & BIT(n)) != 0)

/* ---- the database -------------------------------------------------------------------------------- */

byte last;                       /* last_value of the sequence */
byte holds;                      /* the transactions that pg_locks shows on it */
bool a_locked;                   /* somebody holds the lock of aggregate A */
byte of_a;                       /* the events of A */
byte committed;                  /* a ghost: what was ever committed */
byte outbox, aside;              /* the tables: what is committed there */
byte due;                        /* of outbox_aside: due_at is not NULL */
byte publishing;                 /* of outbox_aside: status publishing, ... */
byte by[2 + A_PUTS + B_PUTS];            /* ... by the relay with this token */
byte tokens;                     /* the last token that was made */
byte live;                       /* the table relay */
byte owner;                      /* outbox_shard.relay */

/* ---- the rest of the world ----------------------------------------------------------------------- */

byte taken;                      /* what the broker has */
byte late;                       /* requests that are still on their way */
byte over;                       /* tokens whose lease is over */
byte dead;                       /* tokens whose relay was killed */
byte calling;                    /* tokens whose relay is inside a call */
byte ended;                      /* writers that have committed or rolled back */
byte busy;                       /* relays that are inside a round */
byte failures = FAILURES, expiries = EXPIRIES, refusals = REFUSALS, unknowns = UNKNOWNS;
byte troubles = TROUBLES, gifts = GIFTS, forgets = FORGETS;

#define CALM (ended == WRITERS && failures + expiries + refusals + unknowns + troubles + gifts + forgets + late == 0)
#define COMPLETE ((committed & ~taken) == 0 && outbox == 0 && aside == 0)
#define DONE (CALM && COMPLETE)

inline take(e)
{
    assert(IN(committed, e));
    assert((committed & MATES(e) & BELOW(e) & ~taken) == 0); /* first occurrences are in order */
#if !defined(STOPS) && !defined(RUNS) && !defined(ORDER_ONLY)
    assert((taken & MATES(e) & ABOVE(e)) == 0); /* the aggregate does not go back */
#endif
#ifdef ONCE
    assert(!IN(taken, e));
#endif
    taken = taken | BIT(e);
}

inline take_all(set)
{
    e = 1;
    do
    :: e <= EVENTS ->
        if
        :: IN(set, e) -> take(e)
        :: else
        fi;
        e++
    :: else -> break
    od;
    e = 0
}

/* A transaction of the application. A prepared one, one that rolls back to a savepoint and one that draws by an
 * explicit nextval look the same: they hold the sequence until they end. */
proctype Writer(byte me; bool a; byte puts)
{
    byte mine;
    if
    :: puts == 0 -> atomic { ended++; goto end }
    :: else
    fi;
#ifdef SINGLE_WRITER
    atomic {
#endif
    atomic {
        !a || !a_locked -> /* lock => true, or an UPDATE of the aggregate before the INSERT */
        a_locked = a_locked || a;
        holds = holds | me /* nextval locks the sequence, and then draws */
    }
    do
    :: d_step {
            puts > 0 ->
            puts--;
            last++;
            mine = mine | BIT(last);
            of_a = (a -> of_a | BIT(last) : of_a)
        }
    :: puts == 0 -> break
    od;
    atomic {
        if
        :: d_step { committed = committed | mine; outbox = outbox | mine }
        :: true /* ROLLBACK */
        fi;
        a_locked = a_locked && !a; /* a row that it has locked is free when others see its commit */
        mine = 0;
#ifdef NO_SEEN_LEFT_OUT /* a prepared one holds the sequence a little longer */
    }
    atomic {
#endif
        holds = holds & ~me; /* outbox_holders leaves out those whose commit can be seen */
        ended++
    }
#ifdef SINGLE_WRITER
    }
#endif
end:
    skip
}

/* ---- statements of sql/statements/postgres/relay.sql --------------------------------------------- */

/* aside_recover and aside_release: what a relay that is gone, or this one under its old token, was publishing. */
inline release(gone)
{
    n = 1;
    do
    :: n <= EVENTS ->
        if
        :: IN(publishing, n) && (gone) ->
            publishing = publishing & ~BIT(n);
            by[n] = 0;
            due = due | BIT(n)
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0
}

/* aside_wake: the first event aside of each aggregate that is touched waits for nothing else. */
inline wake(touched)
{
#ifndef NO_WAKE
    n = 1;
    do
    :: n <= EVENTS ->
        if
        :: IN(aside & ~publishing, n) && (aside & MATES(n) & BELOW(n)) == 0 && ((touched) & MATES(n)) != 0 ->
            due = due | BIT(n)
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0
#else
    skip
#endif
}

/* core/relay.c move_body: shard_lock, the token, outbox_set_aside, aside_wake. */
inline set_aside(set, with_due)
{
    if
#ifdef NO_TOKEN_MOVING
    :: true ->
#else
    :: owner == token ->
#endif
        aside = aside | (outbox & (set));
        due = due | (outbox & (set) & (with_due));
        outbox = outbox & ~(set);
        wake(set)
    :: else /* fenced: the step goes on without it */
    fi
}

/* outbox_read */
inline read_rows(above, rows, held, last_row, exhausted)
{
    rows = 0;
    held = 0;
    last_row = 0;
    e = 0; /* rows, as a number */
    n = (above) + 1;
    do
    :: n <= EVENTS && e < ROWS ->
        if
        :: IN(outbox, n) ->
            e++;
            rows = rows | BIT(n);
#ifndef NO_HELD
            held = ((aside & MATES(n) & BELOW(n)) != 0 -> held | BIT(n) : held);
#endif
            last_row = n
        :: else
        fi;
        n++
    :: else -> break
    od;
    exhausted = e < ROWS;
    e = 0;
    n = 0
}

/* ---- core/starts.c ------------------------------------------------------------------------------- */

/* semel__relay_behind_forget. What is known of a run ends with the proof, too: starts.given_up. */
inline forget_run()
{
#ifdef BEHIND
    run_from = 0;
    passed = 0;
    hot = 0
#else
    skip
#endif
}

inline starts_forget()
{
    forget_run();
    at = 0;
    base = 0;
    floor = 0;
    base_floor = 0;
    noted = false;
    noted_seq = 0;
    holders = 0;
    apart = 0
}

inline raise_floor()
{
    noted = false;
    floor = (noted_seq > floor -> noted_seq : floor);
    base_floor = (apart == 0 -> floor : base_floor);
    noted_seq = 0
}

/* semel__starts_note. `seen`: who holds the sequence. */
inline starts_note(seq, seen)
{
    if
    :: noted ->
        holders = holders & (seen);
        if
        :: holders == 0 -> raise_floor()
        :: holders != 0 -> skip /* it is waited for */
        :: holders != 0 -> apart = apart | holders; holders = 0; raise_floor()
        fi
    :: else
    fi;
    if
    :: !noted ->
        noted = true;
        noted_seq = seq;
        holders = (seen) & ~apart;
        if
        :: holders == 0 -> raise_floor()
        :: else
        fi
    :: else
    fi
}

/* semel__starts_ended, when one of those that were set apart is not among `seen`. */
inline starts_ended(seen)
{
#ifndef NO_RUN_FORGOTTEN
    forget_run();
#endif
    apart = apart & (seen);
    noted = false;
    noted_seq = 0;
    holders = 0;
    floor = base_floor;
    at = base
}

/* semel__starts_scanned */
inline starts_scanned()
{
    n = 1;
    do
    :: n <= EVENTS && !IN(rows, n) -> n++
    :: else -> break
    od;
    n = (n <= EVENTS && n - 1 < floor -> n - 1 : floor);
    at = (n > at -> n : at);
    base = (apart == 0 -> at : base);
    n = 0
}

/* ---- core/relay.c -------------------------------------------------------------------------------- */

/* The end of a step that came too early: the process was killed, or it has lost its connection (semel__relay_forget).
 * A commit whose outcome is unknown is a commit that is followed by this. */
#define MAY_FAIL                                   \
    if                                             \
    :: failures > 0 -> failures--; goto killed     \
    :: failures > 0 -> failures--; goto cut_off    \
    :: true                                        \
    fi

/* list_ahead, may_read_ahead: nothing can appear below what is read ahead; all that was read is about to be sent. */
#ifdef NO_PROOF_AHEAD
#define PROVEN true
#else
#define PROVEN (last_row <= sure)
#endif
#ifdef NO_ALL_SENT
#define ALL_SENT (sends != 0)
#else
#define ALL_SENT (sends == rows && moves == 0 && !any_aside)
#endif

#ifdef BEHIND /* was_read_up_to */
#define READ_BEHIND(n) (beyond_read && (beyond_all || beyond_last >= (n)) && (hot & AGGREGATE(n)) == 0)
#else
#define READ_BEHIND(n) false
#endif
#ifdef NO_LOWEST_FIRST
#define LOWEST(n) true
#else
#define LOWEST(n) ((exhausted || last_row >= (n) || READ_BEHIND(n)) && (rows & MATES(n) & BELOW(n)) == 0)
#endif

#if defined(NO_FLOOR_BEHIND) || defined(SINGLE_WRITER)
#define PROVEN_UP_TO(n) last
#else
#define PROVEN_UP_TO(n) (n)
#endif
#ifdef BEHIND /* what follows the scan from the start on; what was noted by then */
#define LOOKED looked
#define NOTE_WINDOWS skip
#else
#define LOOKED scanned
#define NOTE_WINDOWS starts_scanned()
#endif
/* semel__relay_behind_usable: `end` is that of what was read from the start on. */
#define USABLE(end, proven) (passed != 0 && passed <= PROVEN_UP_TO(proven) && run_from <= (end) && (end) < passed)

/* What is not needed any more must not tell states apart. */
inline forget_scan()
{
    rows = 0;
    held = 0;
    last_row = 0;
    exhausted = false;
    scans = 0;
#ifdef BEHIND
    beyond = 0;
    beyond_held = 0;
    beyond_last = 0;
    beyond_all = false;
    beyond_read = false;
#endif
    n = 0
}

/* What was read ahead and will not be used. */
inline forget_ahead()
{
    ahead = false;
    sure = 0;
    forget_scan()
}

inline begin_round()
{
    quiet = CALM && busy == 0;
    busy++;
    outbox_before = (quiet -> outbox & ~gone : 0);
    aside_before = (quiet -> aside : 0)
}

inline forget_round()
{
    started = false;
    called = false;
    smooth = false;
    reads = false;
    from = 0;
#ifdef BEHIND
    window_end = 0;
#endif
    quiet = false;
    busy--;
    outbox_before = 0;
    aside_before = 0
}

proctype Relay(bool first)
{
    byte token;                                /* 0: none yet */
    bool joined, owned;
    byte at, base, floor, base_floor;          /* struct semel_starts; 0: the bottom */
    bool noted;
    byte noted_seq, holders, apart;
    byte n, e, scans;
    byte rows, held, last_row;                 /* of the scan */
    bool exhausted;
    bool any_aside;                            /* aside_read gave some */
    byte sends, sends_aside, moves, moves_due; /* the plan */
    bool crowded;                              /* A has too many waiting events */
    byte down;                                 /* the destination of A is down; 2: and no other one works */
    byte sent, stop;                           /* aggregates, 1: A, 2: B */
    bool started, called;
    byte request;                              /* the one that is under way */
    byte ok, ok_aside, failed, refused;        /* what came of it */
    byte gone;                                 /* confirmed, and not deleted yet */
    bool ahead;                                /* what was read is of the scan during the last call */
    bool reads, smooth;                        /* this call has such a scan; all of the call was confirmed */
    byte from, stage;                          /* where it starts; what comes next of it: below */
    byte sure;                                 /* the floor, when the scan began */
#ifdef BEHIND
    byte run_from, passed, hot;                /* struct behind: from there on, up to there, only of this aggregate */
    byte beyond, beyond_held, beyond_last;     /* of the scan behind it */
    bool beyond_all, beyond_read;
    byte window_end;                           /* of what was read from the start on, if there is more; or 0 */
#endif
    bool quiet;                                /* ghosts: the round began in a calm world, alone, ... */
    byte outbox_before, aside_before;          /* ... and what was there */

    tokens > 0 || first || DONE; /* both are alike: the first one is the one that beats first */
step:
    atomic {
        if
        :: DONE -> goto end
        :: gifts > 0 && owned && owner == token -> /* semel__relay_leave */
            gifts--;
#ifndef NO_DELETE_LEAVING
            outbox = outbox & ~gone;
#endif
            d_step { gone = 0; forget_ahead() }
            live = live & ~BIT(token);
            owner = 0;
            token = 0;
            joined = false;
            owned = false;
            goto step
        :: owner == 0 || owner == token || !IN(live & ~over, owner) /* who owns no shard does nothing but beat */
#ifdef AHEAD
        :: ahead && joined -> d_step { begin_round() } goto scanned     /* it is not time for a beat */
#endif
        fi;
        d_step {
#ifndef NO_DELETE_FIRST
            outbox = outbox & ~gone; /* before it beats, and before it scans from the start */
#endif
            gone = 0
        }
        if
        :: true
        :: owner != token -> owned = false /* it has beaten while the shard was somebody else's */
        fi;
        /* beat, beat_body, share_out: one transaction */
        d_step {
            live = live & ~over;                       /* relay_expire */
            release(!IN(live, by[n]));                 /* aside_recover */
            if
            :: joined && IN(live, token)               /* relay_renew */
            :: else ->
                if
                :: token != 0 ->                       /* fenced, or after a reconnect: give_back */
                    owner = (owner == token -> 0 : owner);
                    release(by[n] == token);           /* aside_release */
                    live = live & ~BIT(token)
                :: else
                fi;
                forget_ahead();
                tokens++;
                assert(tokens <= 8);                   /* there is a bit for it */
                token = tokens;                        /* relay_join */
                live = live | BIT(token);
                joined = true
            fi;
            at = (owned -> at : 0);                    /* semel__starts_reset */
            base = (owned -> base : 0);
            owner = token;
            if
            :: !owned -> forget_ahead(); forget_run()
            :: else
            fi;
            owned = true;
            begin_round()
        }
        /* note, about once per second: not in each step. */
        if
        :: goto scan
#if !defined(SINGLE_WRITER) || defined(AHEAD)
        :: forgets > 0 -> forgets--; starts_forget(); goto scan
#ifdef NO_NUMBER_FIRST
        :: n = holds
#else
        :: n = last        /* outbox_last */
#endif
#endif
        fi
    }
    atomic {               /* outbox_holders, a later statement */
#ifdef NO_NUMBER_FIRST
        starts_note(last, n);
#else
        starts_note(n, holds);
#endif
        n = 0
    }
scan:
#ifdef AHEAD
    if
    :: ahead -> goto scanned /* take_ahead */
    :: else
    fi;
#endif
#ifdef NO_LOOK_AFTER_SCAN
    atomic {
        if
        :: apart != 0 && (apart & holds) != apart -> starts_ended(holds)
        :: else
        fi
    }
#endif
    /* read_events: outbox_read */
    atomic {
        MAY_FAIL;
        d_step { sure = floor; read_rows(at, rows, held, last_row, exhausted) }
#if !defined(NO_LOOK_AFTER_SCAN) && !defined(NO_LOOK)
        if
        :: apart == 0 -> goto LOOKED
        :: else
        fi
#endif
    }
#if !defined(NO_LOOK_AFTER_SCAN) && !defined(NO_LOOK)
    atomic { /* outbox_holders, a later statement: semel__starts_ended */
        if
        :: (apart & holds) != apart ->
            starts_ended(holds);
            scans++;
            if
            :: scans < SCANS -> goto scan
            :: else -> goto done /* what was read is older than what ended: it may not go, and proves nothing */
            fi
        :: else
        fi
    }
#endif
#ifdef BEHIND
looked:
    atomic { /* note_windows; read_behind */
        starts_scanned();
        if
        :: !exhausted && USABLE(last_row, sure)
        :: else -> goto scanned
        fi;
        MAY_FAIL;
        d_step { read_rows(passed, beyond, beyond_held, beyond_last, beyond_all); beyond_read = true }
        if
        :: apart == 0 -> goto scanned
        :: else
        fi
    }
    atomic { /* outbox_holders, a later statement */
        if
#ifndef NO_LOOK_BEHIND
        :: (apart & holds) != apart ->
            d_step {
                starts_ended(holds);
                beyond = 0;
                beyond_held = 0;
                beyond_last = 0;
                beyond_all = false;
                beyond_read = false
            }
#endif
        :: else
        fi
    }
#endif
scanned:
    /* note_windows; aside_read, a later statement; plan */
    atomic {
        if
        :: true
        :: troubles > 0 && (rows & of_a) != 0 -> troubles--; crowded = true
        :: troubles > 0 && ((rows | aside) & of_a) != 0 -> troubles--; down = 1
        :: troubles > 0 && ((rows | aside) & of_a) != 0 -> troubles--; down = 2
        fi;
        d_step {
            if
            :: ahead -> quiet = false; outbox_before = 0; aside_before = 0 /* it looks at a part only */
            :: else -> NOTE_WINDOWS
            fi;
#ifdef BEHIND
            window_end = (exhausted -> 0 : last_row);
            rows = rows | beyond;
            held = held | beyond_held;
#endif
            n = 1;
            do
            :: n <= EVENTS ->
                if /* plan_aside, may_go_from_aside: the first of its aggregate in both tables */
                :: !ahead && IN(aside & due & ~publishing, n) && (aside & MATES(n) & BELOW(n)) == 0 ->
                    any_aside = true;
                    sends_aside = (LOWEST(n) && !(down && IN(of_a, n)) -> sends_aside | BIT(n) : sends_aside)
                :: else
                fi;
#if defined(BEHIND) && !defined(NO_RUN_STOPPED)
                stop = (IN(beyond, n) -> stop | hot : stop); /* plan_events */
#endif
                if /* plan_event */
                :: !IN(rows, n) || (!IN(held, n) && (stop & AGGREGATE(n)) != 0)
                :: IN(rows & held, n) ->
                    moves = moves | BIT(n);
                    stop = stop | AGGREGATE(n)
                :: IN(rows & ~held, n) && (stop & AGGREGATE(n)) == 0 ->
                    if
#if !defined(RUNS) && !defined(NO_SINGLE_REQUEST)
                    :: (sent & AGGREGATE(n)) != 0 && !crowded /* it waits */
                    :: (sent & AGGREGATE(n)) != 0 && crowded ->
                        moves = moves | BIT(n);
                        moves_due = moves_due | BIT(n);
                        stop = stop | AGGREGATE(n)
#endif
                    :: down && IN(of_a, n) && (sent & AGGREGATE(n)) == 0 ->
                        moves = (down == 1 -> moves | BIT(n) : moves);
                        moves_due = moves_due | (moves & BIT(n));
                        stop = stop | AGGREGATE(n)
                    :: else ->
                        sends = sends | BIT(n);
                        sent = sent | AGGREGATE(n)
                    fi
                fi;
                n++
            :: else -> break
            od;
#ifdef AHEAD
            reads = !exhausted && PROVEN && ALL_SENT;
            from = (reads -> last_row : 0);
#endif
            forget_ahead();
            any_aside = false;
            crowded = false;
            down = 0;
            sent = 0;
            stop = 0
        }
    }
    /* Each of these is a transaction, or a request; the conditions put them in their order. */
    do
    :: atomic { /* write_moves */
            moves != 0 ->
            MAY_FAIL;
            d_step { set_aside(moves, moves_due); moves = 0; moves_due = 0 }
        }
    :: atomic { /* delete_gone, where nothing is read during the call */
            moves == 0 && gone != 0 && !reads && !called ->
            MAY_FAIL;
            d_step { outbox = outbox & ~gone; gone = 0 }
        }
    :: atomic { /* start_aside, start_body: a committed start, by the owner */
            moves == 0 && sends_aside != 0 && !started && (gone == 0 || reads) ->
            MAY_FAIL;
            d_step {
#ifdef NO_TOKEN_STARTING
                sends_aside = sends_aside & aside & ~publishing;
#else
                sends_aside = (owner == token -> sends_aside & aside & ~publishing : 0);
#endif
                publishing = publishing | sends_aside;
                n = 1;
                do
                :: n <= EVENTS -> by[n] = (IN(sends_aside, n) -> token : by[n]); n++
                :: else -> break
                od;
                n = 0;
                started = true
            }
        }
    :: atomic { /* hand_over: a call starts only under a lease that outlasts it */
            moves == 0 && (sends | sends_aside) != 0 && (sends_aside == 0 || started) && (gone == 0 || reads) &&
            !called ->
            MAY_FAIL;
            called = true;
            smooth = true;
            stage = (reads -> 1 : 0); /* start_ahead */
            sure = floor;
            if
            :: IN(over, token) -> failed = sends_aside; sends = 0; sends_aside = 0; smooth = false
#if defined(STOPS) || defined(NO_LEASE_FOR_CALL)
            :: true ->
#else
            :: else ->
#endif
#ifdef NO_DELETE_AFTER_CONFIRM
                outbox = outbox & ~sends;
#endif
                calling = calling | BIT(token)
            fi
        }
#ifdef AHEAD
#define MAY_BREAK /* a failure is noticed when the call has ended: end_ahead */ \
    if                                                                         \
    :: failures > 0 -> failures--; stage = 4                                   \
    :: true                                                                    \
    fi
    :: atomic { /* the store, while the sink publishes: deletes ... */
            stage == 1 ->
            d_step { outbox = outbox & ~gone; gone = 0; stage = 2 }
            MAY_BREAK
        }
    :: atomic { /* ... reads on ... */
            stage == 2 ->
            d_step {
                read_rows(from, rows, held, last_row, exhausted);
                ahead = rows != 0;
                from = 0;
#ifdef NO_LOOK_AHEAD
                stage = 0
#else
                stage = (apart == 0 -> 0 : 3)
#endif
            }
            MAY_BREAK
        }
    :: atomic { /* ... and looks who holds the sequence */
            stage == 3 ->
            if
            :: (apart & holds) != apart -> d_step { starts_ended(holds); forget_ahead() }
            :: else
            fi;
            stage = 0;
            MAY_BREAK
        }
    :: atomic {
            stage == 4 && (sends | sends_aside) == 0 ->
            goto cut_off
        }
#endif
    :: atomic { /* the sink: a request is taken, refused, or left without an answer; from aside first, then by number */
            (sends | sends_aside) != 0 && called ->
            MAY_FAIL;
            d_step {
                n = 1;
                do
                :: !IN((sends_aside != 0 -> sends_aside : sends), n) -> n++
                :: else -> break
                od;
#ifdef RUNS /* the rest of its aggregate is in the same request */
                request = (sends_aside == 0 -> sends & MATES(n) : BIT(n))
#else
                request = BIT(n)
#endif
            }
            if
            :: d_step { take_all(request) };
                ok = (sends_aside == 0 -> ok | request : ok);
                ok_aside = (sends_aside != 0 -> ok_aside | request : ok_aside)
            :: refusals > 0 -> /* of a request with several events the sink blames the first one, sent alone */
                refusals--;
                smooth = false;
                refused = (sends_aside == 0 -> refused | BIT(n) : refused);
                failed = (sends_aside != 0 -> failed | BIT(n) : failed)
            :: unknowns > 0 -> /* it stays in the outbox, or its start is taken back */
                unknowns--;
                smooth = false;
                failed = (sends_aside != 0 -> failed | BIT(n) : failed);
                if
                :: true
                :: d_step { take_all(request) }
#ifdef LATE
                :: late = late | request
#endif
                fi
            fi;
            d_step {
                sends = (sends_aside == 0 -> sends & ~request : sends);
                sends_aside = sends_aside & ~request;
                request = 0;
                n = 0;
                calling = ((sends | sends_aside) != 0 -> calling : calling & ~BIT(token))
            }
        }
    :: atomic { /* write_outcome, confirm_body: no token is needed to delete what was published */
            (sends | sends_aside | stage) == 0 && (ok | ok_aside) != 0 ->
            MAY_FAIL;
            d_step {
#ifdef NO_ALL_CONFIRMED
                if
                :: ahead ->
#else
                if
                :: ahead && smooth ->          /* go_on */
#endif
                    assert(gone == 0);
                    gone = ok;
                    ok = 0
                :: else
                fi;
                outbox = outbox & ~ok;         /* outbox_delete */
                aside = aside & ~ok_aside;     /* aside_delete */
                due = due & aside;
                publishing = publishing & aside;
                n = 1;
                do
                :: n <= EVENTS -> by[n] = (IN(publishing, n) -> by[n] : 0); n++
                :: else -> break
                od;
                wake(ok_aside);
                ok = 0;
                ok_aside = 0
            }
        }
    :: atomic { /* fail_body: aside_fail */
            (sends | sends_aside | stage | ok | ok_aside) == 0 && failed != 0 ->
            MAY_FAIL;
            d_step { release(IN(failed, n) && by[n] == token); failed = 0 }
        }
    :: atomic { /* move_body, for those that were refused */
            (sends | sends_aside | stage | ok | ok_aside | failed) == 0 && refused != 0 ->
            MAY_FAIL;
            d_step { set_aside(refused, refused); refused = 0 }
        }
    :: (moves | sends | sends_aside | stage | ok | ok_aside | failed | refused) == 0 && (gone == 0 || called) -> break
    od;
#ifdef BEHIND
    /* semel__relay_behind_search: a run is never shorter than it is taken for, so any shorter one may be assumed */
    atomic {
        if
        :: true -> goto done
        :: window_end != 0 -> MAY_FAIL
        fi;
        if
        :: USABLE(window_end, floor)
        :: else ->
            run_from = window_end;
            passed = window_end;
            if
            :: hot = 1
            :: hot = 2
            fi
        fi;
        do
        :: passed < PROVEN_UP_TO(floor) && (!IN(outbox, passed + 1) || (hot & AGGREGATE(passed + 1)) != 0) -> passed++
        :: break
        od
    }
#endif
done:
    atomic {
        assert(!quiet || owner != token || (outbox & ~gone) != outbox_before || aside != aside_before || COMPLETE);
        d_step {
            if
#ifdef NO_ALL_CONFIRMED
            :: ahead
#else
            :: ahead && smooth
#endif
            :: else -> forget_ahead()
            fi;
            forget_round()
        }
        goto step
    }
killed: /* another process takes its place */
    atomic {
        dead = dead | BIT(token);
        calling = calling & ~BIT(token);
        token = 0;
        owned = false;
        gone = 0
    }
cut_off:
    atomic {
        calling = (token != 0 -> calling & ~BIT(token) : calling);
        joined = false;
        starts_forget();
        d_step {
            sends = 0;
            sends_aside = 0;
            moves = 0;
            moves_due = 0;
            ok = 0;
            ok_aside = 0;
            failed = 0;
            refused = 0;
            stage = 0;
            forget_ahead();
            forget_round()
        }
        goto step
    }
end:
    skip
}

#ifdef STOPS
#define SPARED 0
#else
#define SPARED calling
#endif

/* Leases end: of the dead always, of the living by a slow database, and with STOPS at any time. In the end nothing
 * disturbs any more, and what is under way arrives. */
proctype World()
{
    byte e;
end:
    do
    :: atomic {
           expiries > 0 && owner != 0 && IN(live & ~over & ~SPARED, owner) ->
           expiries--; over = over | BIT(owner)
       }
    :: (dead & live & ~over) != 0 -> over = over | dead
    :: atomic {
           late != 0 ->
           take_all(late);
           late = 0
       }
    :: atomic {
           ended == WRITERS && !CALM ->
           failures = 0;
           expiries = 0;
           refusals = 0;
           unknowns = 0;
           troubles = 0;
           gifts = 0;
           forgets = 0
       }
    od
}

init
{
    atomic {
        run Writer(1, true, 1);
        run Writer(2, true, A_PUTS);
        run Writer(4, false, B_PUTS);
        run Relay(true);
        run Relay(false);
        run World()
    }
}
