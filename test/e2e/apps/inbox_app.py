# SPDX-License-Identifier: MIT
"""A consumer on clients/python that does what test/e2e/inbox_cases.py asks: a JSON document per line, and an answer.

DATABASE_URLS='{"default": ...}' inbox_app.py DRIVER: psycopg, async, sqlalchemy, django. inbox_app.js is the same.
"""
import asyncio
import base64
import contextlib
import datetime
import inspect
import json
import os
import sys
import threading
import time
import uuid

import semel

DRIVER, URLS = sys.argv[1], json.loads(os.environ["DATABASE_URLS"])
BASE = semel.AsyncInbox if DRIVER == "async" else semel.Inbox
LINK = {"sqlalchemy": {"link": semel.SQLAlchemy}, "django": {"link": semel.Django}}.get(DRIVER, {})


class Bad(Exception):
    """Listed as permanent."""


class Mute(Exception):
    """Has no text."""

    def __str__(self):
        raise ValueError("no text")


OWN = {"KeyError": KeyError, "Bad": Bad, "Mute": Mute}


async def value(given):
    return await given if inspect.isawaitable(given) else given


def django_set_up():
    from urllib.parse import urlsplit

    import django
    from django.conf import settings
    urls = {alias: urlsplit(url) for alias, url in URLS.items()}
    settings.configure(DATABASES={alias: {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username, "PORT": url.port,
        "HOST": url.hostname} for alias, url in urls.items()})
    django.setup()


async def database(alias):
    if DRIVER == "django":
        return alias
    if DRIVER == "sqlalchemy":
        import sqlalchemy
        from sqlalchemy.orm import sessionmaker
        url = URLS[alias].replace("postgres:", "postgresql+psycopg2:")
        narrow = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.3}
        return sessionmaker(sqlalchemy.create_engine(url, **(narrow if alias == "narrow" else {"pool_size": 2})))
    import psycopg_pool
    kind = psycopg_pool.AsyncConnectionPool if DRIVER == "async" else psycopg_pool.ConnectionPool
    made = kind(URLS[alias], min_size=1, max_size=1 if alias == "narrow" else 4, open=False,
                timeout=0.3 if alias in ("down", "narrow") else 10)
    await value(made.open())
    return made


async def execute(tx, statement, *values):
    if DRIVER == "sqlalchemy":
        tx.connection().exec_driver_sql(statement, values)
    elif DRIVER == "django":
        with tx.cursor() as cursor:
            cursor.execute(statement, values or None)
    else:
        await value(tx.execute(statement, values or None))


async def book(tx, message):
    """The effect, and whatever else the payload asks for."""
    asked = message.json
    if asked.get("sleep"):
        time.sleep(asked["sleep"])
    await execute(tx, "INSERT INTO ledger VALUES (%s, %s)", message.id, asked.get("cents", 1))
    if asked.get("swallow"):
        try:
            await execute(tx, "SELECT 1/0")
        except Exception:
            return None
    for statement in ("SELECT %s::text", "SELECT 1 FROM ledger WHERE message_id = %s"):
        if "value" in asked:
            await execute(tx, statement, asked["value"])
    if asked.get("sql"):
        await execute(tx, asked["sql"].replace("%", "%%"))
    if "event" in asked:
        await value(OUTBOX.put(tx, typed(asked.get("about", message.id)), "paid", typed(asked["event"]),
                               headers={"from": "test"}, lock=True))
    if "behind" in asked:
        sys.modules["django.db.transaction"].on_commit(lambda: tx.cursor().execute(asked["behind"]), using=tx.alias)
    if asked.get("end"):
        await value(getattr(tx, asked["end"])())
    if asked.get("rolls_back"):
        raise sys.modules["psycopg"].Rollback
    if asked.get("raise"):
        raise {**vars(semel), **OWN}[asked["raise"]](asked.get("text", "as asked"))
    return outcome_of(asked)


async def outside(message):
    """What a call to another service is: it cannot be rolled back."""
    with open(os.environ["CALLS"], "a", encoding="utf-8") as calls:
        calls.write(f"{message.id} {message.key()} {message.attempt}\n")
    asked = message.json
    if asked.get("hand_on"):
        other = BASE(asked["hand_on"], DBS["default"], **LINK)
        other.handler(plain(book))
        await value(other.deliver(message))
    if asked.get("sleep"):
        await (asyncio.sleep(asked["sleep"]) if DRIVER == "async" else value(time.sleep(asked["sleep"])))
    if asked.get("raise"):
        raise {**vars(semel), **OWN}[asked["raise"]]("as asked")
    return outcome_of(asked)


async def book_all(tx, messages):
    if any(message.json.get("rolls_back") for message in messages):
        raise sys.modules["psycopg"].Rollback
    if any(message.json.get("raise") for message in messages):
        raise Bad(f"one of {len(messages)}")
    for message in messages:
        await execute(tx, "INSERT INTO ledger VALUES (%s, %s)", message.id, message.json["cents"])


def plain(handler):
    """As a function that is no coroutine, unless the driver wants one."""
    return handler if DRIVER == "async" else lambda *given: semel.links.now(handler(*given))


def outcome_of(asked):
    """What JSON cannot say is named."""
    odd = {"loop": [], "nan": float("nan"), "long": "x" * 70000}
    odd["loop"].append(odd["loop"])
    return odd[asked["odd"]] if "odd" in asked else asked.get("outcome")


TYPES = {"base64": base64.b64decode, "bigint": int, "uuid": uuid.UUID, "moment": datetime.datetime.fromisoformat,
         "mute": Mute}


def typed(given):
    """{"uuid": text} and the like is a value of a type that JSON does not have."""
    for name, made in TYPES.items():
        if isinstance(given, dict) and name in given:
            return made(given[name])
    return given


def message_of(asked):
    message = semel.Message(**{name: typed(given) for name, given in asked.items() if name != "header_of_bytes"})
    message.headers = message.headers and {name: typed(one) for name, one in message.headers.items()}
    if "header_of_bytes" in asked:  # as some libraries give them
        message.headers = {asked["header_of_bytes"].encode(): b"true"}
    return message


def shown(answer):
    return {name: getattr(answer, name) for name in ("act", "why", "attempt", "outcome", "status", "acknowledge")}


async def perform(asked):
    op, effect, alias = asked["op"], asked.get("effect", "atomic"), asked.get("db", "default")
    if alias not in DBS:
        DBS[alias] = await database(alias)
    permanent = (Exception if asked.get("broad") else Bad,)
    inbox = BASE(asked["consumer"], DBS[alias], effect=effect, permanent=permanent, **asked.get("set", {}), **LINK)
    if asked.get("batch_handler"):
        inbox.batch_handler(plain(book_all))
    elif not asked.get("no_handler"):
        inbox.handler(plain(book if effect == "atomic" else outside))
    if asked.get("hold"):  # the only connection of its pool
        link = inbox.link()
        async with link.transaction():
            await link.run("SELECT 1")
            return await perform({**asked, "hold": False})
    if op == "deliver":
        messages = [message_of(one) for one in asked["messages"]]
        if len(messages) == 1 and not asked.get("batch_handler"):
            return [shown(await value(inbox.deliver(messages[0])))]
        return [shown(answer) for answer in await value(inbox.deliver_many(messages))]
    if op == "work_once":
        return await value(inbox.work_once(asked.get("batch", 10)))
    if op == "work":
        stop = (asyncio if DRIVER == "async" else threading).Event()
        RUNNING.append(stop)
        if DRIVER == "async":
            RUNNING.append(asyncio.ensure_future(inbox.work(stop, every=0.05, **asked.get("with", {}))))
        else:
            RUNNING.append(threading.Thread(target=inbox.work, args=(stop,), daemon=True,
                                            kwargs={"every": 0.05, **asked.get("with", {})}))
            RUNNING[1].start()
        return None
    if op == "stop":
        RUNNING[0].set()
        await value(RUNNING[1] if DRIVER == "async" else RUNNING[1].join())
        return RUNNING.clear()
    if op == "put":
        link = inbox.link()
        with contextlib.suppress(InterruptedError):
            async with link.transaction():
                answer = await value(inbox.put(link.tx, message_of(asked["message"]), typed(asked.get("not_before"))))
                if asked.get("rollback"):
                    raise InterruptedError
        return shown(answer)
    raise ValueError(op)


async def main():
    read = sys.stdin.readline
    if DRIVER == "async":
        async def read():
            return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while line := await value(read()):
        try:
            said = {"is": await perform(json.loads(line))}
        except Exception as error:
            said = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(said), flush=True)


DBS, RUNNING = {}, []
OUTBOX = (semel.AsyncOutbox if DRIVER == "async" else semel.Outbox)("payment", **LINK)
if DRIVER == "django":
    django_set_up()
if DRIVER == "async":
    asyncio.run(main())
else:
    semel.links.now(main())
