# SPDX-License-Identifier: MIT
"""The models of spec/: spin searches every state of each world below. A world is a model with bounds; it must hold as
it is, and for each guard that is removed from it the search must find a counter-example to the property that rests on
the guard. SEMEL_LONG=1 adds the larger worlds. docs/architecture.md, "Models", says how to read a counter-example."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

SPEC = pathlib.Path(__file__).resolve().parents[2] / "spec"
LONG = os.environ.get("SEMEL_LONG") == "1"
MEMORY_MB = 12000 if LONG else 1000

# A failure of its own ends most searches, so each world spends its bounds on one subject.
STILL = "FAILURES=0 EXPIRIES=0 REFUSALS=0 UNKNOWNS=0 TROUBLES=0 "
ONE = "SINGLE_WRITER B_PUTS=0 "
AHEAD = "AHEAD ROWS=1 "
BEHIND = "BEHIND ROWS=1 "
WORLDS = {
    "inbox-atomic": "ATOMIC",
    "inbox-keyed": "KEYED",
    "inbox-outside": "OUTSIDE LOST=0",
    "inbox-outside-lost": "OUTSIDE RELEASES=0 COPIES=1",
    "inbox-atomic-ends": "ATOMIC ENDS",
    "inbox-keyed-ends": "KEYED ENDS LOST=0",
    "inbox-outside-ends": "OUTSIDE ENDS LOST=0 RELEASES=0",
    "keys-refuse": "REFUSE REQUESTS=2",
    "keys-refuse-effect": "REFUSE DEATHS=0 LATE EFFECT_ONLY",
    "keys-reconcile": "RECONCILE REQUESTS=2",
    "keys-finishes": "FINISHES REQUESTS=2 LOST=0",
    "keys-finishes-effect": "FINISHES REQUESTS=2 LOST=0 DEATHS=0 EFFECT_ONLY",
    "outbox-numbers": STILL + "B_PUTS=0",
    "outbox-numbers-late": STILL + "A_PUTS=0",
    "outbox-takeover": ONE + "FAILURES=0 UNKNOWNS=0",
    "outbox-takeover-stops": ONE + "FAILURES=0 UNKNOWNS=0 STOPS",
    "outbox-crash": ONE + "EXPIRIES=0 UNKNOWNS=0",
    "outbox-unknown": ONE + "FAILURES=0 TROUBLES=0",
    "outbox-runs": ONE + "FAILURES=0 UNKNOWNS=0 RUNS STOPS",
    "outbox-delayed": ONE + "FAILURES=0 TROUBLES=0 LATE ORDER_ONLY",
    "outbox-ahead-numbers": STILL + AHEAD + "A_PUTS=2 B_PUTS=0",
    "outbox-ahead-refused": ONE + AHEAD + "FAILURES=0 EXPIRIES=0 UNKNOWNS=0",
    "outbox-ahead-crash": ONE + AHEAD + "EXPIRIES=0 UNKNOWNS=0",
    "outbox-ahead-down": "SINGLE_WRITER AHEAD FAILURES=0 EXPIRIES=0 UNKNOWNS=0 REFUSALS=0",
    "outbox-ahead-once": ONE + AHEAD + "FAILURES=0 EXPIRIES=0 UNKNOWNS=0 GIFTS=1 ONCE",
    "outbox-behind": "SINGLE_WRITER " + BEHIND + "FAILURES=0 EXPIRIES=0 REFUSALS=0",
}
LARGER = {
    "inbox-larger-atomic": "ATOMIC DEATHS=2 LOST=2 COPIES=3",
    "inbox-larger-keyed": "KEYED DEATHS=2 LOST=2",
    "inbox-larger-outside": "OUTSIDE DEATHS=2",
    "keys-larger-refuse": "REFUSE DEATHS=2 LOST=2",
    "keys-larger-reconcile": "RECONCILE",
    "keys-larger-reconcile-lost": "RECONCILE REQUESTS=2 DEATHS=2 LOST=2",
    "keys-larger-finishes": "FINISHES REQUESTS=2 DEATHS=2 LOST=2",
    "keys-larger-finishes-three": "FINISHES LOST=0",
    "outbox-larger-ahead-numbers": STILL + AHEAD,
    "outbox-larger-ahead-stops": ONE + AHEAD + "FAILURES=0 UNKNOWNS=0 STOPS",
    "outbox-larger-ahead-unknown": ONE + AHEAD + "FAILURES=0 TROUBLES=0",
    "outbox-larger-ahead-two": ONE + "AHEAD A_PUTS=3 FAILURES=0 EXPIRIES=0 UNKNOWNS=0",
    "outbox-larger-behind-numbers": BEHIND + "FAILURES=0 EXPIRIES=0 REFUSALS=0 TROUBLES=0 B_PUTS=2",
    "outbox-larger-behind-down": BEHIND + "FAILURES=0 EXPIRIES=0 REFUSALS=0 UNKNOWNS=0 B_PUTS=2",
    "outbox-larger-behind-crash": "SINGLE_WRITER A_PUTS=2 " + BEHIND + "EXPIRIES=0 UNKNOWNS=0",
    "outbox-larger-numbers": STILL + "FORGETS=1",
    "outbox-larger-numbers-takeover": STILL + "EXPIRIES=1 B_PUTS=0",
    "outbox-larger-numbers-crash": STILL + "FAILURES=1 B_PUTS=0",
    "outbox-larger-all": ONE,
    "outbox-larger-stops": ONE + "STOPS",
    "outbox-larger-runs": ONE + "RUNS STOPS",
    "outbox-larger-delayed": ONE + "LATE ORDER_ONLY",
    "outbox-larger-three": "SINGLE_WRITER B_PUTS=0 A_PUTS=2 FAILURES=0 UNKNOWNS=0 STOPS",
    "outbox-larger-gifts": ONE + "UNKNOWNS=0 FAILURES=0 GIFTS=1",
}

# guard, the world that it is removed from, the property that then fails
GUARDS = [
    ("NO_TOKEN", "inbox-atomic", "newest"),                     # core/admit.c still_ours
    ("NO_TOKEN", "inbox-keyed", "newest"),
    ("NO_TOKEN", "inbox-outside", "newest"),
    ("NO_REFUSED_COMMIT", "inbox-atomic", "once"),              # core/admit.c judge_found: what is fenced does not run
    ("NO_CLAIM_FIRST", "inbox-outside", "decided"),             # core/leases.c semel__items_claim, then run_outside
    ("NO_SECOND_READ", "inbox-outside-lost", "decided"),        # core/leases.c adopt_later
    ("NO_EXPIRY", "inbox-keyed", "leased"),                     # core/leases.c spared
    ("NO_RECOVERY", "inbox-keyed-ends", "ends"),                # core/scheduler.c semel__inbox_recover
    ("NO_CLAIM_FIRST", "keys-refuse-effect", "once"),           # gateway/guard.c claim, then run
    ("NO_CERTAIN_CLAIM", "keys-refuse", "once"),                # gateway/keeper.c try_group
    ("NO_DOUBT_RELEASED", "keys-refuse", "released"),           # gateway/keeper.c resolve_doubt
    ("NO_UNSENT_RELEASED", "keys-refuse", "released"),          # core/keys.c semel__key_outcome
    ("NO_UNKNOWN_FAILED", "keys-refuse", "once"),
    ("NO_UNKNOWN_TIMEOUT", "keys-refuse", "once"),
    ("NO_UNKNOWN_STORED", "keys-refuse", "answer"),
    ("NO_EXPIRED_UNKNOWN", "keys-refuse", "once"),              # core/keys.c semel__key_judge
    ("NO_TOKEN", "keys-refuse-effect", "once"),                 # idempotency.sql idempotency_release
    ("NO_LATE_END", "keys-refuse", "late"),                     # idempotency.sql idempotency_finish
    ("NO_LATE_RELEASE", "keys-refuse", "released"),             # idempotency.sql idempotency_release
    ("NO_SINGLE_SEND", "keys-refuse", "once"),                  # gateway/guard.c call: once per claim
    ("NO_STORE_FIRST", "keys-refuse", "kept"),                  # gateway/guard.c on_ended
    ("NO_SETTLE", "keys-reconcile", "once"),                    # core/keys.c semel__key_may_run
    ("NO_SETTLE_FIRST", "keys-reconcile", "once"),              # gateway/guard.c reconciled
    ("NO_LEASE_FOR_CALL", "keys-reconcile", "once"),            # gateway/guard.c run
    ("NO_REFUSED_FINISH", "keys-finishes-effect", "once"),      # 020_idempotency.sql key_finish
    ("NO_STORED_KEPT", "keys-finishes", "once"),                # idempotency.sql idempotency_release
    ("NO_NUMBER_FIRST", "outbox-numbers", "complete"),          # store/records_relay.c note
    ("NO_NUMBER_FIRST", "outbox-numbers-late", "complete"),
    ("NO_LOOK_AFTER_SCAN", "outbox-numbers", "order"),          # store/records_relay.c read
    ("NO_LOOK", "outbox-numbers", "complete"),                  # core/relay.c read_events
    ("NO_SEEN_LEFT_OUT", "outbox-numbers", "order"),            # relay.sql outbox_holders
    ("NO_SINGLE_REQUEST", "outbox-takeover", "order"),          # core/relay.c plan_event
    ("NO_DELETE_AFTER_CONFIRM", "outbox-crash", "complete"),    # core/relay.c write_outcome
    ("NO_TOKEN_MOVING", "outbox-takeover", "order"),            # core/relay.c move_body
    ("NO_TOKEN_STARTING", "outbox-takeover-stops", "order"),    # core/relay.c start_body
    ("NO_LEASE_FOR_CALL", "outbox-takeover", "back"),           # core/relay.c hand_over
    ("NO_WAKE", "outbox-takeover", "complete"),                 # relay.sql aside_wake
    ("NO_HELD", "outbox-takeover", "order"),                    # relay.sql outbox_read
    ("NO_LOWEST_FIRST", "outbox-takeover", "order"),            # core/relay.c may_go_from_aside
    ("NO_PROOF_AHEAD", "outbox-larger-ahead-numbers", "order"),  # core/relay.c list_ahead
    ("NO_LOOK_AHEAD", "outbox-larger-ahead-numbers", "order"),  # core/relay.c end_ahead
    ("NO_ALL_SENT", "outbox-ahead-down", "order"),              # core/relay.c may_read_ahead
    ("NO_ALL_CONFIRMED", "outbox-ahead-refused", "order"),      # core/relay.c go_on
    ("NO_DELETE_FIRST", "outbox-ahead-once", "again"),          # core/relay.c run_round, beat
    ("NO_DELETE_LEAVING", "outbox-ahead-once", "again"),        # core/relay.c semel__relay_leave
    ("NO_RUN_STOPPED", "outbox-behind", "order"),               # core/relay.c plan_events
    ("NO_FLOOR_BEHIND", "outbox-larger-behind-numbers", "order"),   # core/relay_behind.c semel__relay_behind_search
    ("NO_LOOK_BEHIND", "outbox-larger-behind-numbers", "order"),    # core/relay.c read_behind
]
LARGER_GUARDS = [
    ("NO_RUN_FORGOTTEN", "outbox-larger-behind-numbers", "order"),  # core/starts.c given_up
]

# How pan shows each property when it fails: the beginning of the assertion, or the kind of the error.
PROPERTIES = {
    "once": r"assertion violated \(effects==1\)",
    "newest": r"assertion violated \(\(lease==mine\)",
    "leased": r"assertion violated \(living==0\)",
    "decided": r"assertion violated \(\(\(called&",
    "ends": r"acceptance cycle",
    "released": r"assertion violated \(\(\(state==\d+\)\|\|\(state==\d+\)\)\|\|",
    "late": r"assertion violated \(\(result!=",
    "kept": r"assertion violated \(\(told==0",
    "answer": r"assertion violated \(\(\(state==\d+\)&&\(answer==executed",
    "order": r"assertion violated \(*committed&",
    "back": r"assertion violated \(*taken&",
    "again": r"assertion violated  !\(\(\(taken&",
    "complete": r"assertion violated \(* !\(quiet\)",
}

pytestmark = pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (tools/setup test)")


def search(folder, world, *more):
    """What the verifier prints about this world."""
    defines = ["-D" + word for word in [*dict(WORLDS, **LARGER)[world].split(), *more]]
    ends = "-DENDS" in defines
    model = SPEC / (world.split("-")[0] + ".pml")
    print("cd", folder, "&& spin", *defines, "-a", model, "   # what follows is in docs/architecture.md")
    for command in (["spin", *defines, "-a", str(model)],
                    ["gcc", "-O2" if LONG else "-O0", "-w", f"-DMEMLIM={MEMORY_MB}",
                     *([] if ends else ["-DSAFETY"]), *(["-DCOLLAPSE"] if LONG else []), "-o", "pan", "pan.c"]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, timeout=600)
    run = subprocess.run(["./pan", "-m200000", *(["-a", "-f"] if ends else [])], cwd=folder, check=False,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(run.stdout)
    return run.stdout


@pytest.mark.parametrize("world", [*WORLDS, *(LARGER if LONG else [])])
def test_the_model_holds(tmp_path, world):
    # A3, A7, A9, O2, O5, O6, I7, P1, P47, P48, P54, P95, P98, P69, P80, P105: see the head of each model
    output = search(tmp_path, world)
    assert re.search(r"errors: 0\b", output)
    assert "Search not completed" not in output and "depth too small" not in output


@pytest.mark.parametrize("guard,world,fails", [*GUARDS, *(LARGER_GUARDS if LONG else [])])
def test_without_its_guard_the_model_fails(tmp_path, guard, world, fails):
    # A3, A7, A9, I7, O5, O6, P1, P47, P48, P54, P95, P98, P69, P80, P105: the guard is what the property rests on
    output = search(tmp_path, world, guard)
    assert re.search(r"errors: 1\b", output)
    assert re.search(r"^pan:1: " + PROPERTIES[fails], output, re.MULTILINE)


def test_an_aggregate_of_the_outbox_goes_back_if_the_broker_takes_a_request_after_its_call(tmp_path):
    """An assumption, not a guard: docs/outbox.md."""
    output = search(tmp_path, "outbox-unknown", "LATE")
    assert re.search(r"^pan:1: " + PROPERTIES["back"], output, re.MULTILINE)


def test_one_of_the_keys_stays_taken_if_its_commit_takes_place_after_its_release(tmp_path):
    """P98: an assumption, not a guard: docs/architecture.md."""
    output = search(tmp_path, "keys-refuse", "LATE")
    assert re.search(r"^pan:1: " + PROPERTIES["released"], output, re.MULTILINE)


def test_every_guard_of_the_inbox_and_of_the_outbox_and_of_the_keys_is_removed():
    for path in SPEC.glob("*.pml"):
        removed = {guard for guard, world, _ in GUARDS + LARGER_GUARDS if world.startswith(path.stem + "-")}
        assert removed == set(re.findall(r"\bNO_[A-Z_]+\b", path.read_text(encoding="utf-8"))), path
