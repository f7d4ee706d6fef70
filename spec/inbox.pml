/* SPDX-License-Identifier: MIT
 *
 * inbox.pml: a Promela model of the leased path of the inbox: claim, call, end, recover, decide. One message, two
 * workers, a broker that delivers copies, a recovery, and a person or a reconcile who decides about unknown outcomes.
 * docs/architecture.md, "Models", says what is left out and how to run it; test/spin/test_models.py runs it.
 *
 * Each transaction is one step; a worker may die or stall between any two. Time is not modelled: a lease is over
 * whenever the search wants it, and the store's clock is the only one that counts. A set of tokens is a byte with one
 * bit for each.
 *
 * One of three macros says where the effect is: ATOMIC (in the transaction of the end), KEYED (outside, idempotent by
 * its key), OUTSIDE (outside). What is verified:
 *   - an effect inside the transaction commits at most once, and once if the message is completed;
 *   - an end counts only under the newest claim: a late completion is refused;
 *   - nobody claims a message while the lease of another claim lives;
 *   - OUTSIDE: a call begins only if each earlier one certainly did nothing, or somebody has decided about it;
 *   - `ltl ends`: every message comes to an end, whoever dies: a stuck row is always recovered.
 *
 * Macros that remove a guard have the prefix NO_. The model must fail with each of them.
 */
#if defined(ATOMIC) + defined(KEYED) + defined(OUTSIDE) != 1
#error "say where the effect is: -DATOMIC, -DKEYED or -DOUTSIDE"
#endif
#ifndef COPIES
#define COPIES 2 /* deliveries of the message */
#endif
#ifndef DEATHS
#define DEATHS 1 /* of workers */
#endif
#ifndef LOST
#define LOST 1 /* commits whose answer is lost */
#endif
#ifndef RELEASES
#define RELEASES 1 /* claims that are given back before the call */
#endif
#ifndef DECISIONS
#define DECISIONS 1 /* of a person, for another try */
#endif
#define ATTEMPTS 2 /* retry_max */

#define BIT(token) (1 << ((token) - 1))
#define BELOW(token) (BIT(token) - 1)

mtype = { absent, processing, waiting, failed, unknown, completed, dead };        /* core/state.c */
mtype = { done, transient, maybe };                                               /* enum semel_result */

/* ---- the row ------------------------------------------------------------------------------------- */

mtype state = absent;
byte lease;                      /* lease_token */
bool over;                       /* lease_until lies before the store's clock */
byte attempts;                   /* since a person retried it */
bool alone;

/* ---- the rest of the world ----------------------------------------------------------------------- */

byte tokens;                     /* the last one that was made: core/token.c, they rise per message */
byte copies = COPIES;            /* deliveries that are not acknowledged */
byte deaths = DEATHS, lost = LOST, releases = RELEASES, decisions = DECISIONS;

/* Ghosts. */
byte living;                     /* claims whose lease is not over and whose holder has not ended them */
byte called;                     /* claims whose call has begun and may have had its effect */
byte decided;                    /* a decision covers the calls of the tokens up to this one */
byte effects;                    /* committed inside transactions */

#define OURS (state == processing && lease == mine)
#define AT_REST (state == completed || state == dead || (state == unknown && decisions == 0))
#define FINISHED (AT_REST && copies == 0)

/* core/progress.c failed_or_dead */
#define FAILED_OR_DEAD (attempts >= ATTEMPTS -> dead : failed)

/* core/progress.c move: a row that leaves `processing` has no lease. */
inline move(to)
{
    state = to;
    lease = 0;
    over = false
}

/* core/progress.c semel__progress_release */
inline give_back()
{
    attempts--;
    move((attempts > 0 -> failed : waiting))
}

/* core/admit.c plan, core/scheduler.c judge: semel__progress_claim. In a group the message is not alone. */
inline claim()
{
    assert(living == 0);
    state = processing;
    lease = mine;
    over = false;
    attempts++;
    living = living | BIT(mine)
}

inline have_effect()
{
    effects++;
    assert(effects == 1)
}

/* core/progress.c ending_state */
inline finish()
{
#ifdef NO_TOKEN
    if
    :: state == processing ->
#else
    if
    :: OURS ->
#endif
        assert(lease == mine && mine == tokens);
        living = living & ~BIT(mine);
        alone = true;
        if
        :: result == done ->
#ifdef ATOMIC
            have_effect(); /* the handler ran in this transaction: core/inbox.c work_run */
#endif
            move(completed)
        :: result == transient -> move(FAILED_OR_DEAD)
        :: result == maybe ->
#ifdef OUTSIDE
            move(unknown)
#else
            move(FAILED_OR_DEAD)
#endif
        fi
    :: else -> /* fenced: core/leases.c keep_evidence */
#if defined(ATOMIC) && defined(NO_REFUSED_COMMIT)
        if
        :: result == done -> have_effect()
        :: else
        fi;
#endif
        living = living & ~BIT(mine)
    fi
}

#define MAY_DIE                                \
    if                                         \
    :: deaths > 0 -> deaths--; goto died       \
    :: true                                    \
    fi

proctype Worker()
{
    byte mine;    /* the token of its claim */
    mtype result;

again:
    atomic {
        mine = 0;
        result = 0;
        if
        :: FINISHED -> goto end
        /* A delivery of what is over, or kept: core/verdict.c semel__verdict_deliver: acknowledge. */
        :: copies > 0 && state != absent && state != processing -> copies--; goto again
#ifdef ATOMIC
        /* core/inbox.c process: the batch path, record and effect in one transaction, without a claim. */
        :: copies > 0 && state == absent ->
            have_effect();
            attempts++;
            state = completed;
            goto again
#endif
        /* A delivery (core/leases.c semel__items_claim), or a stored row that is due (core/scheduler.c take_some). */
        :: (copies > 0 && state == absent) || state == failed || state == waiting ->
            tokens++;
            assert(tokens <= 8); /* there is a bit for it */
            mine = tokens;
            if
            :: lost > 0 -> lost--; goto unsure  /* the commit did not arrive */
            :: lost > 0 -> lost--; claim(); goto unsure
#ifdef NO_CLAIM_FIRST
            :: true /* the claim is written, and not committed before the call */
#else
            :: claim()
#endif
            fi
        fi
    }
    goto claimed;
unsure: /* core/leases.c adopt_later: the row is read again, and must have the very lease that was written */
    atomic {
        if
#ifdef NO_SECOND_READ
        :: true
#else
        :: OURS
        :: else -> goto again
#endif
        fi
    }
claimed:
    /* The delivery is acknowledged later, or never: a death leaves it with the broker. */
#ifndef ATOMIC
    /* core/leases.c keep_leases: a call starts only under a lease that has half its time left. */
    atomic {
        MAY_DIE;
        if
        :: OURS -> over = false; living = living | BIT(mine)
#if defined(NO_CLAIM_FIRST) || defined(NO_SECOND_READ)
        :: else
#else
        :: else -> goto again
#endif
        fi;
        if
        :: true
        :: releases > 0 && OURS -> /* the world fails before the call: LEASE_RELEASE */
            releases--;
            living = living & ~BIT(mine);
            give_back();
            goto again
        fi
    }
    /* core/leases.c run_outside, daemon/worker.c: the call begins. A worker that stalled before it begins late. */
    atomic {
        MAY_DIE;
#ifdef OUTSIDE
        assert((called & BELOW(mine) & ~BELOW(decided + 1)) == 0);
#endif
        called = called | BIT(mine)
    }
    atomic {
        MAY_DIE;
        if
        :: result = done
        :: result = maybe
        :: result = transient; called = called & ~BIT(mine) /* the handler says that nothing happened */
        fi
    }
#else
    /* The handler runs inside the transaction of the end, and fails or not. */
    if
    :: result = done
    :: result = transient
    fi;
#endif
    /* core/leases.c end_leases; core/inbox.c semel__items_run for an effect inside. After an unknown commit the row is
     * read again: what is still ours is ended again. */
ending:
    atomic {
        MAY_DIE;
        if
        :: lost > 0 -> lost--; goto ending
        :: lost > 0 -> lost--; finish(); goto ending
        :: finish(); goto again
        fi
    }
died: /* another process takes its place; its lease goes on until it is over */
    goto again;
end:
    skip
}

/* core/scheduler.c semel__inbox_recover: it looks without locks, and reads again under lock. */
proctype Recovery()
{
    byte mine; /* the token that it saw */
end:
    do
    :: atomic { state == processing && over -> mine = lease }
        atomic {
            if
#ifdef NO_EXPIRY
            :: OURS -> /* core/leases.c spared does not look at the time */
#else
            :: OURS && over ->
#endif
#ifdef ATOMIC
                if
                :: !alone -> alone = true; give_back() /* it ran with others: nobody is blamed */
                :: else -> move(FAILED_OR_DEAD)
                fi
#endif
#ifdef KEYED
                move(FAILED_OR_DEAD)
#endif
#ifdef OUTSIDE
                move(unknown)
#endif
            :: else
            fi;
            mine = 0
        }
    od
}

/* The store's clock; and core/command.c: a person, or a reconcile, decides about what is unknown. */
proctype World()
{
end:
    do
    :: atomic { state == processing && !over -> over = true; living = living & ~BIT(lease) }
    :: atomic { decisions > 0 && state == unknown -> decisions--; move(completed) } /* resolve: it was done */
    :: atomic {
            decisions > 0 && state == unknown -> /* retry: it was not done */
            decisions--;
            attempts = 0;
            decided = tokens;
            move(failed)
        }
#ifdef ATOMIC
    :: atomic { FINISHED -> assert(state != completed || effects == 1); break }
#else
    :: FINISHED -> break
#endif
    od
}

#ifdef ENDS
ltl ends { <> (FINISHED) }
#endif

init
{
    atomic {
        run Worker();
        run Worker();
#ifndef NO_RECOVERY
        run Recovery();
#endif
        run World()
    }
}
