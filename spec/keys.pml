/* SPDX-License-Identifier: MIT
 *
 * keys.pml: a Promela model of one idempotency key behind gateways: claim, call, end, expire, reconcile, replay. Two
 * gateways (one that dies is replaced by its successor), a client that repeats its request, a server behind them that
 * acts late, and a store. docs/architecture.md, "Models", says what is left out and how to run it;
 * test/spin/test_models.py runs it.
 *
 * Each transaction, each question and each request is one step; a gateway may die or stall between any two. Time is not
 * modelled: a lease is over, a call times out whenever the search wants it. The server executes a request at any time
 * after it was sent, also after its 503 and after the time-out, or never. A set of tokens is a byte with one bit for
 * each. An answer is the token of the execution that it belongs to.
 *
 * One of three macros is the policy: REFUSE and RECONCILE (on_unknown of a rule), FINISHES (the server finishes the key
 * by its token, in the transaction of its effect; something behind the gateway may double its requests). `settle`
 * is taken at its word: once it is over, the call under this token is not running, and will not begin.
 * What is verified:
 *   - the server's effect happens at most once;
 *   - an answer that is sent is stored, and is the answer of the execution that happened;
 *   - whoever was answered gets the same answer again: it is stored before it is sent;
 *   - an answer that comes late, when the key is unknown already, still completes it;
 *   - a key for which nothing was sent is released, also if its COMMIT was in doubt, unless its gateway has died.
 *
 * Macros that change the world: LATE: a COMMIT without an answer may take place after the new connection was made.
 * EFFECT_ONLY: an answer that comes may be lost, and a key may stay taken.
 * Macros that remove a guard have the prefix NO_. The model must fail with each of them.
 */
#if defined(REFUSE) + defined(RECONCILE) + defined(FINISHES) != 1
#error "what becomes of an unknown key: -DREFUSE, -DRECONCILE or -DFINISHES"
#endif
#ifndef REQUESTS
#define REQUESTS 3 /* of the client, all with the same key */
#endif
#ifndef DEATHS
#define DEATHS 1 /* of gateways */
#endif
#ifndef LOST
#define LOST 1 /* commits whose answer is lost */
#endif

#define BIT(token) (1 << ((token) - 1))
#define IN(set, token) (((set) & BIT(token)) != 0)

mtype = { absent, processing, unknown, completed };                  /* core/keys.h; released: absent */
mtype = { done, refused, failed, silent, unsent };                   /* what came of a call: 2xx, 4xx, 5xx, ... */

/* ---- the row ------------------------------------------------------------------------------------- */

mtype state = absent;
byte lease;                      /* token */
bool over;                       /* lease_until lies before the store's clock */
byte answer;                     /* of a completed one */
byte floating;                   /* the token of a claim whose COMMIT the server has, and has not done yet */

/* ---- the rest of the world ----------------------------------------------------------------------- */

byte tokens;                     /* the last one that was made */
byte requests = REQUESTS, deaths = DEATHS, lost = LOST;
byte working;                    /* gateways that have a request */
byte sending;                    /* tokens whose call begins: the lease was looked at */
byte pending, doubled;           /* requests that the server may still execute; the second ones of a token */
byte expired;                    /* tokens whose first lease is over: gateway/keeper.h leased_until_us */
byte dead;                       /* tokens whose gateway has died */

/* Ghosts. */
byte called;                     /* tokens of which a byte may have left */
byte effects;
byte executed;                   /* the token whose execution had its effect */
byte told;                       /* the answer that the client got */

#define RUNS_ON(token) IN(sending | pending | doubled, token)
#define AT_REST (requests == 0 && working == 0 && (pending | doubled) == 0 && floating == 0)

/* idempotency.sql: an end counts under the last token, while there is no answer. */
#ifdef NO_STORED_KEPT
#define OPEN (state != absent)
#else
#define OPEN (state == processing || state == unknown)
#endif
#ifdef NO_TOKEN
#define ENDS(token) (OPEN)
#else
#define ENDS(token) ((OPEN) && lease == (token))
#endif

#ifdef FINISHES
#define UNKNOWN absent           /* gateway/guard.c end_key; idempotency.sql idempotency_expire_atomic */
#else
#define UNKNOWN unknown
#endif

inline become(to)
{
    state = to;
    over = false;
    lease = (to == absent -> 0 : lease)
}

inline claim(token)
{
    state = processing;
    lease = token;
    over = false;
    answer = 0
}

inline complete(token)
{
    become(completed);
    answer = token
}

inline have_effect(token)
{
    effects++;
    assert(effects == 1);
    executed = token
}

inline tell()
{
    assert(state == completed && answer == executed && answer != 0);
    told = answer
}

/* core/keys.c semel__key_outcome, and the end by the token. */
inline finish()
{
    if
    :: !ENDS(mine)
#ifdef NO_LATE_END
    :: ENDS(mine) && result == done && state == unknown
    :: ENDS(mine) && result == done && state != unknown -> complete(mine)
#else
    :: ENDS(mine) && result == done -> complete(mine)
#endif
    :: ENDS(mine) && result == refused -> become(absent)
#if defined(NO_UNSENT_RELEASED)
    :: ENDS(mine) && result == unsent -> become(UNKNOWN)
#elif defined(NO_LATE_RELEASE)
    :: ENDS(mine) && result == unsent && state == unknown
    :: ENDS(mine) && result == unsent && state != unknown -> become(absent)
#else
    :: ENDS(mine) && result == unsent -> become(absent)
#endif
#if defined(NO_UNKNOWN_FAILED)
    :: ENDS(mine) && result == failed -> become(absent)
#elif defined(NO_UNKNOWN_STORED)
    :: ENDS(mine) && result == failed -> complete(mine)
#else
    :: ENDS(mine) && result == failed -> become(UNKNOWN)
#endif
#ifdef NO_UNKNOWN_TIMEOUT
    :: ENDS(mine) && result == silent -> become(absent)
#else
    :: ENDS(mine) && result == silent -> become(UNKNOWN)
#endif
    fi
}

#define MAY_DIE                                                    \
    if                                                             \
    :: deaths > 0 ->                                               \
        deaths--;                                                  \
        dead = dead | BIT(mine);                                   \
        sending = sending & ~BIT(mine);                            \
        goto over_with                                             \
    :: true                                                        \
    fi

proctype Gateway()
{
    byte mine;     /* the token of its claim */
    byte theirs;   /* of the earlier one that it asks about */
    byte said;     /* what the reconcile answered; 0: not_done */
    bool settled;
    bool away;     /* the client got a 503: storing has failed */
    mtype result;

again:
    atomic {
        if
        :: requests == 0 -> goto end
        :: requests > 0 -> requests--; working++
        fi
    }
claiming: /* core/keys.c semel__key_judge, idempotency.sql idempotency_put and idempotency_retake */
    atomic {
        assert(told == 0 || (state == completed && answer == told));
        mine = 0;
        if
        :: state == completed -> tell(); goto over_with /* replay */
        :: state == processing && !over -> goto over_with /* 409 running */
        :: state == absent && floating != 0 -> goto over_with /* the lock of its name is taken: 409 */
#if defined(FINISHES) || defined(NO_EXPIRED_UNKNOWN)
        :: (state == absent && floating == 0) || (state == processing && over) ->
#else
        :: state == absent && floating == 0 ->
#endif
            tokens++;
            assert(tokens <= 8); /* there is a bit for it */
            mine = tokens;
            if
            :: lost > 0 && state == absent -> lost--; floating = mine; goto unsure
#ifdef FINISHES
            :: lost > 0 && state != absent -> lost--; goto unsure
            :: lost > 0 && state != absent -> lost--; claim(mine); goto unsure
#endif
#ifdef NO_CLAIM_FIRST
            :: true /* the claim is written, and not committed before the call */
#else
            :: claim(mine)
#endif
            fi
#ifdef RECONCILE
        :: state == unknown || (state == processing && over) ->
            theirs = lease;
            settled = !RUNS_ON(theirs); /* by the time of this claim: gateway/guard.c reconciled */
            goto asking
#else
        :: state == unknown -> goto over_with /* 409 unknown */
#if !defined(FINISHES) && !defined(NO_EXPIRED_UNKNOWN)
        :: state == processing && over -> goto over_with
#endif
#endif
        fi
    }
    goto claimed;
unsure: /* gateway/keeper.c resolve_doubt: its token is released on a new connection; or later, by the guard */
#if defined(NO_CERTAIN_CLAIM)
    goto claimed;
#elif defined(NO_DOUBT_RELEASED)
    goto over_with;
#endif
    atomic {
#ifndef LATE
        floating != mine; /* the server has done it, or never will */
#endif
        MAY_DIE;
        result = unsent;
        if
        :: lost > 0 -> lost--; goto unsure
        :: lost > 0 -> lost--; finish(); goto unsure
        :: finish(); goto claiming
        :: finish(); goto over_with
        fi
    }
claimed: /* gateway/guard.c run: nothing is sent after the lease has ended */
    atomic {
        MAY_DIE;
        if
#ifdef NO_LEASE_FOR_CALL
        :: true -> sending = sending | BIT(mine)
#else
        :: !IN(expired, mine) -> sending = sending | BIT(mine)
#endif
        :: true -> result = unsent; goto ending
        fi
    }
    atomic { /* gateway/guard.c call */
        MAY_DIE;
        sending = sending & ~BIT(mine);
        if
        :: result = unsent; goto ending /* no connection */
        :: called = called | BIT(mine);
            pending = pending | BIT(mine);
#if defined(FINISHES) || defined(NO_SINGLE_SEND)
            if
            :: doubled = doubled | BIT(mine)
            :: true
            fi
#endif
        fi
    }
    atomic { /* gateway/guard.c on_call_done */
        MAY_DIE;
        if
        :: executed == mine -> result = done
        /* A refusal says that nothing happened, and nothing will; but a doubled request may. */
        :: executed != mine && IN(pending, mine) -> pending = pending & ~BIT(mine); result = refused
        :: result = failed /* the handler may run on */
        :: result = silent
        fi;
#ifdef NO_STORE_FIRST
        if
        :: result == done -> told = mine
        :: else
        fi
#endif
    }
ending: /* gateway/guard.c end_key, end_again, on_ended */
    atomic {
        MAY_DIE;
        if
        :: lost > 0 -> lost--; away = true; goto ending
        :: lost > 0 -> lost--; finish(); away = true; goto ending /* the row is locked until it is decided */
        :: away && result == done -> result = silent; goto ending /* the answer is not kept any longer */
        :: finish()
        fi;
#ifndef EFFECT_ONLY
        assert(result != done || (state == completed && answer == mine));
#endif
        if
        :: !away && state == completed && lease == mine -> tell()
        :: else
        fi;
        goto over_with
    }
#ifdef RECONCILE
asking: /* gateway/guard.c reconciled */
    atomic {
        if
        :: said = executed
        :: goto over_with /* anything else was answered */
        fi
    }
    atomic {
#ifdef NO_SETTLE_FIRST
        settled = !RUNS_ON(theirs);
#endif
        if
#ifdef NO_SETTLE
        :: true
#else
        :: said != 0 || settled
        :: said == 0 && !settled -> goto over_with /* 409: it may still be running */
#endif
        fi
    }
    atomic { /* gateway/guard.c resolve: under the token of the earlier request; then it claims again */
        if
        :: !ENDS(theirs)
        :: ENDS(theirs) && said != 0 -> complete(said)
        :: ENDS(theirs) && said == 0 -> become(absent)
        fi;
        theirs = 0;
        said = 0;
        settled = false;
        goto claiming
    }
#endif
over_with: /* the request has its answer, or its gateway has died and another one takes its place */
    atomic {
        mine = 0;
        theirs = 0;
        said = 0;
        settled = false;
        away = false;
        result = 0;
        working--;
        goto again
    }
end:
    skip
}

proctype Server()
{
    byte token;
end:
    do
    :: atomic {
            (pending | doubled) != 0 ->
            token = 1;
            do
            :: token < tokens -> token++
            :: break
            od;
            if
            :: IN(pending, token) -> pending = pending & ~BIT(token)
            :: IN(doubled, token) -> doubled = doubled & ~BIT(token)
            :: else -> goto next
            fi;
            if
            :: true /* it never does it */
#ifdef FINISHES
            /* semel.key_finish in its transaction: 020_idempotency.sql */
            :: ENDS(token) -> have_effect(token); complete(token)
#ifdef NO_REFUSED_FINISH
            :: !ENDS(token) -> have_effect(token)
#endif
#else
            :: have_effect(token)
#endif
            fi;
next:
            token = 0
        }
    od
}

/* The store's clock and its housekeeping, the renewals of those who live, and COMMITs that are in doubt. */
proctype Store()
{
end:
    do
    :: atomic { state == processing && !over -> over = true; expired = expired | BIT(lease) }
    :: atomic { state == processing && over && !IN(dead, lease) -> over = false } /* idempotency_renew_all */
    :: atomic { state == processing && over -> become(UNKNOWN) } /* idempotency_expire */
    :: atomic { floating != 0 -> claim(floating); floating = 0 }
    :: atomic { floating != 0 -> floating = 0 }
    :: atomic {
            AT_REST ->
#ifndef EFFECT_ONLY
            assert(state == absent || state == completed || IN(called | dead, lease));
#endif
            break
        }
    od
}

init
{
    atomic {
        run Gateway();
        run Gateway();
        run Server();
        run Store()
    }
}
