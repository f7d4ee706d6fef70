# SPDX-License-Identifier: MIT
"""The inbox and the outbox of Semel on PostgreSQL: a message takes effect once, whatever its broker does.

    inbox, payments = Inbox("billing", pool), Outbox("payment")     # pool: psycopg_pool.ConnectionPool

    @inbox.handler
    def charge(tx, message):                         # tx: the connection, in the transaction of the message's record
        order = message.json
        tx.execute("INSERT INTO ledger VALUES (%s, %s)", [order["account"], order["cents"]])
        payments.put(tx, order["id"], "paid", {"cents": order["cents"]})
        return {"receipt": 7}                        # optional: what its duplicates are answered with

    answer = inbox.deliver(Message("evt-1", body))   # it is committed now; a StoreError is raised where nothing is
    answer.acknowledge                               # False: pause, and let the broker deliver it again

    inbox.work()                                     # in a thread or process of its own: runs what is to be tried again

Record, effect and events commit together. A handler that raises is rolled back to the savepoint before it, and its
failure is committed with the payload, under one of four classes: raise Transient, Permanent, Rejected or Unknown, or
list exceptions of your own, Inbox(..., permanent=(ValueError,)). Of the database's errors bad data and violated
constraints are permanent, a missing foreign key and a statement's time-out transient; every other exception is
transient. After a deadlock, a serialization failure or a lost connection the whole transaction runs again, and no
attempt counts; after a lost COMMIT, too: the store knows whether the message is done. What nobody can record is raised:
Unavailable (later), Unusable (fix it first).

Where the effect is outside the database, effect="outside" (or "keyed": safe to repeat under its key), the handler is
charge(message), in no transaction, under a lease that a heartbeat renews; its Idempotency-Key is message.key(),
and an exception that is in no class is unknown (keyed: transient).
"""
import json
import random
import time
from dataclasses import replace
from typing import Any, Callable, Collection, Mapping, Optional, Sequence, Tuple, Type, TypeVar
from uuid import UUID

from .links import Link, log, now, settled
from .message import KINDS, Answer, Message, StoreError, Unavailable, Unusable, clean, converted, moment, text_of

Call = Tuple[str, Mapping[str, Any]]
Kinds = Sequence[Type[BaseException]]
F = TypeVar("F", bound=Callable[..., Any])
BEGUN = "act, why, attempt, outcome::text"
# With the source as it is stored: a retry has the same key.
CLAIMED = f"token, CASE semel.consumer(%(consumer)s) ->> 'one_source' WHEN 'true' THEN '' ELSE %(source)s END, {BEGUN}"
TAKEN = "token, attempt, headers::text, message_id, raw, source, type, order_key, version"
RELEASE = "SELECT semel.inbox_release(token) FROM unnest(%(tokens)s::bigint[]) AS token"
STATES = [(("23503", "57014", "25P02", "42804", "42846"), "transient"), (("40", "55P03", "55006"), "again"),
          (("08", "53", "57", "58", "25006", "25P03", "25P04"), "lost"), (("23000",), "stop"),
          (("20", "21", "22", "23", "44", "54", "P0"), "permanent")]
MADE = {"DataError": "22000", "OperationalError": "08000", "InterfaceError": "08000", "DatabaseError": "42000"}
HINTS = {**dict.fromkeys(("3F000", "42883"), "if the schema is missing or old: semel migrate --store postgres://..."),
         "23000": "a handler never ends its transaction",
         "42501": "sql/postgres/roles.sql gives a role its rights, a row in semel.access its consumers"}


def call(function: str, columns: str = "*", **given: Any) -> Call:
    values = {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in given.items()}
    return f"SELECT {columns} FROM semel.{function}({', '.join(f'{name} => %({name})s' for name in given)})", values


def cause_of(error: Any) -> Any:
    """Of an error of SQLAlchemy or Django that of the driver: None, if there was none. Any other one is its own."""
    wraps = type(error).__module__.startswith("django.db")
    return cause_of(error.__cause__) if wraps else getattr(error, "orig", error)


def state_of(error: BaseException) -> Optional[str]:
    """SQLSTATE, made up where a driver has none; None: not an error of a database."""
    found: Any = cause_of(error)
    made = (MADE[kind.__name__] for kind in type(found).__mro__ if kind.__name__ in MADE)
    state: Optional[str] = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None) or next(made, None)
    # A value whose type does not fit may be the message's: the driver cannot send it, or there is no operator for it.
    routine = getattr(getattr(found, "diag", None), "source_function", None)
    odd = state == "42000" and "adapt type" in str(found) or state == "42883" and routine == "op_error"
    return "42804" if odd else state


def said_by(error: BaseException) -> str:
    """Of an error of a database the first line: the others quote rows and parameters."""
    quotes = state_of(error) or cause_of(error) is not error
    return clean(error).strip().split("\n" if quotes else "\0")[0][:500] or type(error).__name__


def kind_of(state: Optional[str]) -> str:
    """A class of failure; or `again`: the transaction's, `lost`: the connection's, `stop`: the program's."""
    return "transient" if state is None else next((kind for starts, kind in STATES if state.startswith(starts)), "stop")


def answers_of(rows: list[Any]) -> list[Answer]:
    return [Answer(act, why, n, outcome and json.loads(outcome), *fate) for act, why, n, outcome, *fate in rows]


class AsyncInbox:
    """As Inbox, with an AsyncConnectionPool and handlers that are coroutines; `stop` is an asyncio.Event."""

    def __init__(self, consumer: str, db: Any, *, effect: str = "atomic", link: Type[Link] = Link, lease: float = 60,
                 tries: int = 5, transient: Kinds = (), permanent: Kinds = (), rejected: Kinds = (),
                 unknown: Kinds = ()) -> None:
        if effect not in ("atomic", "outside", "keyed") or tries < 1:
            raise ValueError(f"effect is {effect!r}, tries {tries}: must be atomic, outside or keyed, and 1 or more")
        self.consumer, self.effect, self.tries = consumer, effect, tries
        self.lease, self.term = lease, f"{lease} seconds"
        self.link: Callable[..., Link] = lambda quiet=None, tx=None: link(db, quiet, not isinstance(self, Inbox), tx)
        self.listed = {"transient": transient, "permanent": permanent, "rejected": rejected, "unknown": unknown}
        self.handler(self.missing)

    def missing(self, *_: Any) -> None:
        raise Unusable(f"the inbox of {self.consumer!r} has no handler: decorate a function with @inbox.handler")

    def handler(self, function: F, *, many: bool = False) -> F:
        """A decorator: charge(tx, message), or charge(message) where the effect is outside."""
        self.function, self.many = function, many
        return function

    def batch_handler(self, function: F) -> F:
        """A decorator: charge(tx, messages), for all of a batch at once. If it raises, they are run one by one."""
        return self.handler(function, many=True)

    def judge(self, error: BaseException) -> str:
        """What it is called counts first, then what only the transaction can settle, then what is listed."""
        own = "store" if isinstance(error, StoreError) else kind_of(state_of(error))
        called = [word for word, kind in KINDS.items() if isinstance(error, kind)]
        only = [own] if self.effect == "atomic" and own in ("again", "lost", "store") else []
        listed = [word for word, kinds in self.listed.items() if isinstance(error, tuple(kinds))]
        return (called + only + listed + [{"atomic": own, "keyed": "transient", "outside": "unknown"}[self.effect]])[0]

    async def again(self, link: Link, error: Exception, n: int) -> str:
        """Pauses, if repeating can settle it: `again` or `lost`. Raises any other error."""
        if (state := state_of(error)) is None:
            raise error
        kind, said = kind_of(state.replace("57014", "57")), said_by(error)  # a time-out that is no handler's
        if kind not in ("again", "lost"):
            raise Unusable(f"{said} (SQLSTATE {state}); {HINTS.get(state, 'nothing was recorded')}") from error
        if n + 1 == self.tries:
            raise Unavailable(f"{said}; acknowledge nothing, and deliver it again") from error
        await link.wait(min(0.02 * 4 ** n, 1) * random.uniform(0.5, 1))
        return kind

    async def ask(self, link: Link, asked: Call, tokens: bool = False) -> list[Any]:
        """One call, one transaction. After a lost COMMIT the tokens in front of its rows show what was committed."""
        rows: list[Any] = []
        for n in range(self.tries):
            try:
                async with link.transaction():
                    rows = [r for r in rows if r[0] and await self.renew(link, r[0])] or await link.run(*asked)
                break
            except Exception as error:  # pylint: disable=broad-except
                rows = rows if await self.again(link, error, n) == "lost" and tokens else []
        return rows

    async def renew(self, link: Link, token: Any) -> bool:
        return bool((await link.run(*call("inbox_renew", token=token, lease=self.term)))[0][0])

    async def tell(self, link: Link, asked: Call, failed: str) -> None:
        """Asks for what can be done without: what has ended the work, such as KeyboardInterrupt, stays what it is."""
        try:
            await self.ask(link, asked)
        except StoreError as error:
            log.warning("%s: %s: %s", self.consumer, failed, error)

    # ---- effects in the transaction --------------------------------------------------------------------------------

    async def settle(self, link: Link, messages: Sequence[Message]) -> list[Answer]:
        """Runs messages in one transaction, again where that can settle it. One that was taken comes alone."""
        lost, answers = False, []  # type: bool, list[Answer]
        for n in range(self.tries):
            try:
                answers = []
                async with link.transaction():
                    answers = await self.begin(link, messages)
                    await self.attempt(link, messages, answers)
                if not lost or all(answer.why != "busy" for answer in answers):
                    break
                await link.wait(0.2)  # the server has yet to notice that the lost connection is gone
            except Exception as error:  # pylint: disable=broad-except
                kind = self.judge(error) if answers else ""  # what begins nothing is no message's fault
                if kind in KINDS and len(messages) > 1:  # only one by one they show whose fault it was
                    return [(await self.settle(link, [message]))[0] for message in messages]
                if kind in KINDS and state_of(error):  # by a deferred constraint, or the outcome
                    return answers_of(await self.ask(link, self.end(messages[0], error=error)))
                lost = await self.again(link, error, n) == "lost" or lost
        return answers

    async def attempt(self, link: Link, messages: Sequence[Message], answers: list[Answer]) -> None:
        runs = [message for message, answer in zip(messages, answers) if answer.act == "run"]
        done: list[dict[str, Any]] = []
        for group in [runs] if self.many and runs else [[one] for one in runs]:
            try:
                async with link.savepoint():
                    said = await settled(self.function(link.tx, group if self.many else group[0]))
                    outcome = None if said is None or self.many else converted(json.dumps, said, "the outcome")
                done += [{"message_id": str(one.id), "source": one.source or "", "outcome": outcome} for one in group]
            except Exception as error:  # pylint: disable=broad-except
                if self.judge(error) not in KINDS or len(group) > 1:
                    raise
                # Of equal ones only the first runs.
                [answers[messages.index(group[0])]] = answers_of(await link.run(*self.end(group[0], error=error)))
        if len(done) > 1:
            parsed = [{**one, "outcome": one["outcome"] and json.loads(one["outcome"])} for one in done]
            await link.run(*call("inbox_done_many", consumer=self.consumer, messages=parsed))
        elif done and messages[0].token is None:
            await link.run(*call("inbox_done", consumer=self.consumer, **done[0]))
        elif done and "fenced" in (await link.run(*self.end(messages[0], done[0]["outcome"])))[0]:
            raise Unusable("the lease was lost while its row was held")
        await link.run("SET CONSTRAINTS ALL IMMEDIATE")

    async def begin(self, link: Link, messages: Sequence[Message]) -> list[Answer]:
        first, given = messages[0], [message.arguments() for message in messages]
        if first.token is not None:  # its row is ours from here on: nobody takes it while the handler runs
            mine = await self.renew(link, first.token)
            return [Answer("run" if mine else "ack", "retry" if mine else "fenced", first.attempt)]
        rows = await link.run(*(call("inbox_begin", BEGUN, consumer=self.consumer, **given[0]) if len(given) == 1 else
                                call("inbox_begin_many", BEGUN, consumer=self.consumer, messages=given)))
        for message, row in zip(messages, rows):
            message.attempt = row[2]
        return answers_of(rows)

    def end(self, message: Message, outcome: Optional[str] = None, error: Optional[BaseException] = None) -> Call:
        """Of what has a token, or has failed: its row is the answer's."""
        how = {"outcome": outcome} if error is None else {"class": self.judge(error), "reason": said_by(error)}
        if message.token is not None:
            fate = f"'ack', CASE WHEN inbox_finish THEN 'retry' ELSE 'fenced' END, {message.attempt:d}, NULL"
            return call("inbox_finish", fate, token=message.token, **how)
        fate = f"act, why, {message.attempt:d}, NULL, status, due_at"
        return call("inbox_fail", fate, consumer=self.consumer, **message.arguments(), **how)

    # ---- effects outside -------------------------------------------------------------------------------------------

    async def claim(self, link: Link, message: Message) -> Answer:
        asked = call("inbox_claim", CLAIMED, consumer=self.consumer, lease=self.term, **message.arguments())
        [(message.token, message.source, *row)] = await self.ask(link, asked, tokens=True)
        message.attempt, [answer] = row[2], answers_of([row])
        if answer.act == "run":
            async with link.beside(self.beat, {message.token}):
                await self.outside(link, message)
        return answer

    async def outside(self, link: Link, message: Message) -> None:
        """Calls the handler and records its end. Where the store is away by then, the lease runs out."""
        said, end = None, self.end(message)
        try:
            said = await settled(self.function(message))
        except Exception as error:  # pylint: disable=broad-except
            end = self.end(message, error=error)
        try:
            rows = await self.ask(link, end if said is None else self.end(message, json.dumps(said, default=str)))
        except Exception as error:  # pylint: disable=broad-except
            if said is None or isinstance(error, Unavailable):
                raise
            rows = await self.ask(link, end)  # the effect has happened, whatever it said
            log.warning("%s: %s is done, and its outcome cannot be stored: %s", self.consumer, message.id, error)
        if "fenced" in rows[0]:
            log.warning("%s: lease expired while %s ran; its end is kept as evidence", self.consumer, message.id)

    async def beat(self, link: Link, tokens: Collection[Any]) -> None:
        while not await link.wait(self.lease / 3):
            for token in list(tokens):
                await self.tell(link, call("inbox_renew", token=token, lease=self.term), "lease not renewed")

    # ---- what is stored --------------------------------------------------------------------------------------------

    async def work_once(self, batch: int = 10, stop: Any = None) -> int:
        link, asked = self.link(stop), call("inbox_take", TAKEN, consumer=self.consumer, max=batch, lease=self.term)
        waiting = {row[0]: row[1:] for row in reversed(await self.ask(link, asked, tokens=True))}  # the first one last
        unended, taken = set(waiting), len(waiting)
        # A transaction holds its row: a renewal would wait for it. A call outside needs its lease until its end, and
        # may have happened when it ends badly: it is not given back.
        renewed, unrun = (waiting, unended) if self.effect == "atomic" else (unended, waiting)
        try:
            async with link.beside(self.beat, renewed):
                while waiting and not link.quiet.is_set():
                    token, (attempt, headers, id_, raw, *others) = waiting.popitem()
                    pairs = json.loads(headers or "{}")
                    message = Message(id_, None if pairs.pop("semel_tombstone", None) else bytes(raw), pairs, *others)
                    message.attempt, message.consumer, message.token = attempt, self.consumer, token
                    await (self.settle(link, [message]) if self.effect == "atomic" else self.outside(link, message))
                    unended.remove(token)
        finally:
            if unrun:  # no attempt counts
                await self.tell(link, (RELEASE, {"tokens": [*unrun]}), "not given back, the lease runs out")
        return taken

    async def work(self, stop: Any = None, *, batch: int = 10, every: float = 1, tick: bool = True) -> None:
        link, due, full = self.link(stop), 0.0, True
        while not await link.wait(0 if full else every):
            full = False
            try:
                if tick and time.monotonic() >= due:
                    due = time.monotonic() + every
                    await self.ask(link, call("tick"))
                full = await AsyncInbox.work_once(self, batch, link.quiet) == batch
            except Unavailable as error:
                log.warning("%s: store unavailable: %s; tried again in %s s", self.consumer, error, every)

    async def put(self, tx: Any, message: Message, not_before: Any = None) -> Answer:
        due = moment("not_before", not_before) or not_before
        asked = call("inbox_put", consumer=self.consumer, **message.arguments(), not_before=due)
        return Answer(*(await self.link(tx=tx).run(*asked))[0])

    async def deliver_many(self, messages: Sequence[Message]) -> list[Answer]:
        # What was taken may be handed on: its token is another consumer's.
        made = [replace(message, consumer=self.consumer, token=None) for message in messages]
        return (await self.settle(self.link(), made) if made and self.effect == "atomic" else
                [await self.claim(self.link(), message) for message in made])

    async def deliver(self, message: Message) -> Answer:
        return (await AsyncInbox.deliver_many(self, [message]))[0]


class Inbox(AsyncInbox):
    """The same, without waiting for anything but the server: there is no event loop."""

    def deliver(self, message: Message) -> Answer:  # type: ignore[override]
        """Runs the handler, unless the message is a copy. What is returned is committed."""
        return now(super().deliver(message))

    def deliver_many(self, messages: Sequence[Message]) -> list[Answer]:  # type: ignore[override]
        """The same for a batch in one transaction: an answer for each. A failure undoes its own message only."""
        return now(super().deliver_many(messages))

    def put(self, tx: Any, message: Message, not_before: Any = None) -> Answer:  # type: ignore[override]
        """Stores a message in your transaction, to be run by work()."""
        return now(super().put(tx, message, not_before))

    def work(self, stop: Any = None, *, batch: int = 10, every: float = 1, tick: bool = True) -> None:  # type: ignore
        """Runs stored messages when they are due, and the housekeeping, until `stop` (a threading.Event) is set."""
        now(super().work(stop, batch=batch, every=every, tick=tick))

    def work_once(self, batch: int = 10, stop: Any = None) -> int:  # type: ignore[override]
        """Runs stored messages that are due now; how many there were."""
        return now(super().work_once(batch, stop))


class AsyncOutbox:
    """As Outbox, in a transaction of an AsyncConnection."""

    def __init__(self, aggregatetype: str, destination: Optional[str] = None, *, link: Type[Link] = Link) -> None:
        self.aggregatetype, self.destination, self.link = aggregatetype, destination, link

    async def put(self, tx: Any, aggregateid: Any, type_: str, body: Any, headers: Optional[Mapping[str, str]] = None,
                  id: Optional[UUID] = None, lock: bool = False) -> UUID:  # pylint: disable=redefined-builtin
        asked = call("outbox_put", "outbox_put::text", aggregatetype=self.aggregatetype, type=type_,
                     aggregateid=text_of("aggregateid", aggregateid), id=id and str(id), headers=dict(headers or {}),
                     raw=None if body is None else Message("", body).raw, destination=self.destination, lock=lock)
        return UUID((await self.link(None, loop=not isinstance(self, Outbox), tx=tx).run(*asked))[0][0])


class Outbox(AsyncOutbox):
    """Events of one kind of aggregate. put() is a part of your transaction: rolled back means never sent."""

    def put(self, tx: Any, *event: Any, **more: Any) -> UUID:  # type: ignore[override]
        """put(tx, aggregateid, type, body, headers=None, id=None, lock=False) gives the id of the event. With lock=True
        events of an aggregate leave in the order of their commits; a lock of yours on the aggregate will do as well."""
        return now(super().put(tx, *event, **more))
