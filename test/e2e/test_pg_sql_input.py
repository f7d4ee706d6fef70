# SPDX-License-Identifier: MIT
"""The SQL functions of PostgreSQL and what is passed to them; the roles, and what each of them cannot do."""
import hashlib
import json
import random
import re
import struct

import pytest

from pg import pg_server  # noqa: F401  (a fixture)
from pgsql import (MIGRATIONS, SOURCE, Database, Shop, ask, begin, call, committed, consumer, count, db,  # noqa: F401
                   documentation, handle, psycopg2, refused, run_file, shop)

errors = psycopg2.errors


# ---- arguments -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("sql, text", [
    ("SELECT * FROM semel.inbox_begin(NULL, 'i')", "inbox_begin: consumer is missing"),
    ("SELECT * FROM semel.inbox_begin('', 'i')", "inbox_begin: consumer is empty; it must have 1 to 255 bytes"),
    ("SELECT * FROM semel.inbox_begin('c', '')", "inbox_begin: message_id is empty; it must have 1 to 255 bytes"),
    ("SELECT * FROM semel.inbox_begin('c', repeat('x', 256))",
     "inbox_begin: message_id has 256 bytes; at most 255 are allowed"),
    ("SELECT * FROM semel.inbox_begin('c', repeat('é', 128))", "message_id has 256 bytes"),
    ("SELECT * FROM semel.inbox_begin(repeat('c', 256), 'i')", "consumer has 256 bytes"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', repeat('s', 256))", "source has 256 bytes"),
    ("SELECT * FROM semel.inbox_claim('c', 'i', type => repeat('t', 256))", "inbox_claim: type has 256 bytes"),
    ("SELECT * FROM semel.inbox_put('c', 'i', order_key => '')", "inbox_put: order_key is empty"),
    ("SELECT * FROM semel.inbox_put('c', 'i', business_key => '')", "inbox_put: business_key is empty"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', payload => '1', raw => '1')", "give one of them"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', headers => '[]')", "headers must be a JSON object"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', version => -1)", "version is -1; it must be a whole number from 0"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', fingerprint => '')", "fingerprint has 0 bytes; it must have 1 to 63"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', message_time => 'infinity')", "message_time must lie in the years"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', delivery => -1)", "delivery is -1"),
    ("SELECT * FROM semel.inbox_claim('c', 'i', lease => '-1s')", "inbox_claim: lease must be from 1ms to 1 day"),
    ("SELECT * FROM semel.inbox_claim('c', 'i', lease => '2 days')", "lease must be from 1ms to 1 day"),
    ("SELECT * FROM semel.inbox_fail('c', 'i')", "inbox_fail: class is missing"),
    ("SELECT * FROM semel.inbox_fail('c', 'i', class => 'done')",
     "inbox_fail: class must be transient, permanent, rejected or unknown"),
    ("SELECT * FROM semel.inbox_fail('c', NULL, class => 'transient')", "inbox_fail: message_id is missing"),
    ("SELECT * FROM semel.inbox_take(NULL)", "inbox_take: consumer is missing"),
    ("SELECT * FROM semel.inbox_take('c', 0)", "inbox_take: max must be from 1 to 1000"),
    ("SELECT * FROM semel.inbox_take('c', NULL)", "inbox_take: max is missing"),
    ("SELECT semel.inbox_done('c', NULL)", "inbox_done: message_id is missing"),
    ("SELECT semel.inbox_done(NULL, 'i')", "inbox_done: consumer is missing"),
    ("SELECT semel.inbox_finish(NULL)", "inbox_finish: token is missing"),
    ("SELECT semel.inbox_finish(0)", "inbox_finish: token is 0; tokens are numbers from 1"),
    ("SELECT semel.inbox_finish(1, 'well')",
     "inbox_finish: class must be done, transient, permanent, rejected or unknown"),
    ("SELECT semel.inbox_finish(1, 'done', to_jsonb(repeat('x', 70000)))", "at most 65536 are allowed"),
    ("SELECT semel.inbox_renew(NULL)", "inbox_renew: token is missing"),
    ("SELECT semel.inbox_release(NULL)", "inbox_release: token is missing"),
    ("SELECT semel.tick(0)", "tick: max must be from 1"),
    ("SELECT semel.outbox_put('a', NULL, 'c')", "outbox_put: aggregateid is missing"),
    ("SELECT semel.outbox_put('a', 'b', '')", "outbox_put: type is empty"),
    ("SELECT semel.outbox_put('a', 'b', 'c', headers => '1')", "outbox_put: headers must be a JSON object"),
    ("SELECT semel.outbox_put('a', 'b', 'c', '{}', '{}')", "give one of them"),
    ("SELECT semel.outbox_put('a', 'b', 'c', headers => '{\"Id\": 1}')", "written by Semel"),
    ("SELECT semel.outbox_put('a', 'b', 'c', headers => '{\"ce_Type\": 1}')", "written by Semel"),
    ("SELECT semel.outbox_put('a', 'b', 'c', headers => '{\"WebHook-id\": 1}')", "written by Semel"),
    ("SELECT semel.outbox_put('a', i::text, 'c', lock => true) FROM generate_series(1, 1002) AS i", "more than 1000"),
    ("SELECT semel.step_key('c', 'i', NULL)", "step_key: step is missing"),
    ("SELECT semel.step_key('c', repeat('i', 256), 's')", "step_key: message_id has 256 bytes"),
    ("SELECT semel.consumer(NULL)", "consumer: consumer is missing"),
    ("SELECT semel.consumer('c', '[]')", 'settings of consumer "c": what was given is a list; it must be a JSON obj'),
    ("SELECT semel.consumer('c', '{\"retries\":1}')", 'there is no setting "retries"'),
    ("SELECT semel.consumer('c', '{\"retry_max\":0}')", "retry_max is 0; it must be a whole number, 1 to 1000"),
    ("SELECT semel.consumer('c', '{\"retry_max\":1.5}')", "retry_max is 1.5; it must be a whole number"),
    ("SELECT semel.consumer('c', '{\"retry_max\":\"8\"}')", 'retry_max is "8"; it must be a whole number'),
    ("SELECT semel.consumer('c', '{\"lease\":60}')", 'lease is 60; it must be a duration such as "90s", 1ms to 1d'),
    ("SELECT semel.consumer('c', '{\"lease\":\"2d\"}')", 'lease is "2d"'),
    ("SELECT semel.consumer('c', '{\"effect\":\"odd\"}')", 'effect is "odd"; it must be one of atomic|outside|keyed'),
    ("SELECT semel.consumer('c', '{\"one_source\":1}')", "one_source is 1; it must be true|false"),
    ("SELECT semel.consumer('c', '{\"retry_first\":\"1h\"}')", "retry_ceiling is 10m; it must be at least retry_first"),
    ("SELECT semel.consumer('c', '{\"keep_payload\":\"never\",\"order\":\"arrival\"}')", "keep_payload is never"),
    ("SELECT semel.consumer('c', '{\"keep_payload\":\"never\",\"effect\":\"keyed\"}')", "keep_payload is never"),
])
def test_bad_argument_is_named_with_what_would_be_right(db, sql, text):
    error = refused(db, sql)
    assert text in error.diag.message_primary and error.pgcode == "22023"
    assert (count(db), count(db, "semel.consumer"), count(db, "semel.outbox")) == (0, 0, 0)


@pytest.mark.parametrize("sql, code", [
    ("SELECT * FROM semel.inbox_begin('c')", "42883"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', payload => '{')", "22P02"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', version => 1.5)", "42883"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', message_time => 'someday')", "22007"),
    ("SELECT semel.outbox_put('a', 'b', 'c', id => 'not-a-uuid')", "22P02"),
])
def test_argument_of_another_type_is_the_servers_to_refuse(db, sql, code):
    assert refused(db, sql).pgcode == code


@pytest.mark.parametrize("sql, code", [
    ("SELECT * FROM semel.inbox_begin('c', E'a\\x00b')", "22021"),
    ("SELECT * FROM semel.inbox_begin('c', E'\\xff')", "22021"),
    ("SELECT * FROM semel.inbox_begin('c', convert_from('\\xff', 'UTF8'))", "22021"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', business_key => chr(0))", "54000"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', payload => '\"\\u0000\"')", "22P05"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', payload => 'no json')", "22P02"),
    ("SELECT * FROM semel.inbox_begin('c', 'i', raw => '\\x0')", "22023"),
])
def test_text_that_no_database_in_utf8_can_hold_is_the_servers_to_refuse(db, sql, code):
    assert refused(db, sql).pgcode == code
    assert count(db) == 0


ODD = ["it's", '"', "a;b", "'; DROP TABLE semel.inbox; --", "tab\tnew\nline\r", "\x01\x1b[31m\x7f", "x" * 255,
       "é" * 127, "%s $1 :x ? \\", "$$", " ", "\u202e", "\u2028", "{}", "NULL", "null"]


@pytest.mark.parametrize("odd", ODD)
def test_odd_text_is_a_name_like_any_other_wherever_it_stands(db, odd):
    more = dict(consumer=odd, source=odd, type=odd, business_key=odd, order_key=odd, headers=json.dumps({odd: odd}))
    assert begin(db, odd, payload=json.dumps({odd: odd}), **more)["act"] == "run"
    committed(db, "SELECT semel.inbox_done(%s, %s, %s, %s)", odd, odd, odd, json.dumps(odd))
    told = begin(db, odd, payload=json.dumps({odd: odd}), **more)
    assert (told["act"], told["why"], told["outcome"]) == ("ack", "duplicate", odd)
    assert begin(db, odd + "2" if len(odd) < 100 else "2", **{**more, "order_key": "k"})["why"] == "business_duplicate"
    call(db, "inbox_fail", message_id="3", **{**more, "business_key": "b", "class": "permanent", "reason": odd})
    assert ask(db, "SELECT semel.outbox_put(%s, %s, %s, destination => %s) IS NULL", odd, odd, odd, odd) == [(False,)]
    assert len(ask(db, "SELECT semel.step_key(%s, %s, %s, %s)", odd, odd, odd, odd)[0][0]) == 64
    db.commit()
    assert committed(db, "SELECT DISTINCT consumer, source, type FROM semel.inbox") == [(odd, odd, odd)]
    assert committed(db, "SELECT order_key FROM semel.inbox WHERE message_id = %s", odd) == [(odd,)]
    assert count(db, "semel.outbox") == 1


# I11, P56
@pytest.mark.parametrize("raw", [b"\xff\xfe", b"", b"\x00", b"no json", b'{"a":', b'{"a":1}x', b"[" * 9000,
                                 b'"\xed\xa0\x80"', b'{"a":"\\ud800"}', b"1e999", b'{"n":1e999}'])
def test_payload_that_is_no_json_or_no_text_is_kept_by_its_bytes(db, raw):
    told = call(db, "inbox_put", consumer="billing", message_id="i", raw=psycopg2.Binary(raw))[0]
    assert (told["act"], told["why"]) == ("ack", "new")
    db.commit()
    assert call(db, "inbox_put", consumer="billing", message_id="i", raw=psycopg2.Binary(raw))[0]["why"] == "duplicate"
    assert call(db, "inbox_put", consumer="billing", message_id="i",
                raw=psycopg2.Binary(raw + b"!"))[0]["why"] == "conflict"
    taken = call(db, "inbox_take", consumer="billing")[0]
    assert bytes(taken["raw"]) == raw
    db.commit()


def test_consumer_that_keeps_no_payloads_stores_nothing(db):
    consumer(db, "c", keep_payload="never")
    assert "could never be run" in str(refused(db, "SELECT * FROM semel.inbox_put('c', 'i')"))
    assert committed(db, "SELECT * FROM semel.inbox_take('c')") == []


def test_read_only_transaction_is_refused_by_the_server(db):
    ask(db, "SET TRANSACTION READ ONLY")
    assert refused(db, "SELECT * FROM semel.inbox_begin('c', 'i')").pgcode == "25006"


def test_collation_of_what_is_passed_does_not_matter(db):
    ask(db, 'CREATE TABLE public.event (id text COLLATE "POSIX", consumer text COLLATE "ucs_basic", k text)')
    ask(db, "INSERT INTO public.event VALUES ('Id-1', 'billing', 'K')")
    assert ask(db, "SELECT b.act, b.why FROM public.event AS e, semel.inbox_begin(e.consumer, e.id, e.id, e.id, "
                   "business_key => e.id, order_key => e.k) AS b") == [("run", "new")]
    ask(db, "SELECT semel.inbox_done(e.consumer, e.id, e.id) FROM public.event AS e")
    ask(db, "SELECT f.why FROM public.event AS e, semel.inbox_fail(e.consumer, e.id, class => e.id) AS f WHERE false")
    assert ask(db, "SELECT length(semel.step_key(e.consumer, e.id, e.k)) FROM public.event AS e") == [(64,)]
    assert ask(db, "SELECT count(*) FROM public.event AS e, semel.inbox_take(e.consumer) AS t") == [(0,)]
    assert ask(db, "SELECT semel.outbox_put(e.id, e.consumer, e.k, lock => true) IS NULL FROM public.event AS e") == [
        (False,)]
    assert ask(db, "SELECT semel.consumer(e.consumer) ->> 'order' FROM public.event AS e") == [("arrival",)]
    db.rollback()


def test_what_the_caller_has_in_its_search_path_is_not_used(db):
    ask(db, "CREATE TEMP TABLE inbox (LIKE semel.inbox); CREATE TEMP TABLE held (LIKE semel.held);"
            "CREATE SCHEMA evil; SET LOCAL search_path = pg_temp, evil, semel, public, pg_catalog;"
            "CREATE FUNCTION evil.format(text, VARIADIC \"any\") RETURNS text LANGUAGE internal AS 'text_format';"
            "CREATE FUNCTION evil.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT 1/0';"
            "CREATE FUNCTION evil.random() RETURNS double precision LANGUAGE sql AS 'SELECT 1/0::float'")
    assert begin(db, "id-1", payload="{}")["act"] == "run"
    ask(db, "SELECT semel.inbox_done('billing', 'id-1')")
    call(db, "inbox_fail", consumer="billing", message_id="id-2", payload="{}", **{"class": "transient"})
    ask(db, "SELECT semel.tick()")
    assert ask(db, "SELECT count(*) FROM semel.inbox") == [(2,)]
    assert ask(db, "SELECT count(*) FROM pg_temp.inbox") == [(0,)]
    db.rollback()


# ---- settings ------------------------------------------------------------------------------------------

def test_settings_of_a_consumer_are_shown_with_their_defaults(db):
    assert ask(db, "SELECT semel.consumer('billing')")[0][0]["retry_max"] == 8
    shown = committed(db, "SELECT semel.consumer('billing', '{\"retry_max\": 3}')")[0][0]
    assert shown["retry_max"] == 3 and shown["order"] == "none"
    assert committed(db, "SELECT semel.consumer('billing')")[0][0] == shown
    assert committed(db, "SELECT settings FROM semel.consumer") == [({"retry_max": 3},)]
    again = committed(db, "SELECT semel.consumer('billing', %s)", json.dumps(shown))[0][0]
    assert again == shown


# The page is what the C library's own table prints, which a test of the library compares.
def test_settings_are_those_of_the_c_library(db):
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| `(.+?)` \|", documentation("settings-consumer.md"), re.MULTILINE)
    assert len(rows) == 18
    shown = ask(db, "SELECT semel.consumer('any')")[0][0]
    assert {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in shown.items()} == {
        name: value for name, _, value in rows}
    for name, kind, _ in rows:
        text = str(refused(db, "SELECT semel.consumer('c', %s)", json.dumps({name: []})))
        assert kind.replace("\\|", "|").removeprefix("duration, ") in text, name


def test_settings_that_other_hands_have_broken_are_named_when_they_are_read(db):
    committed(db, "INSERT INTO semel.consumer (consumer, settings, updated_at) VALUES ('billing', '{\"x\":1}', now())")
    assert 'stored settings of consumer "billing": there is no setting "x"' in str(
        refused(db, "SELECT * FROM semel.inbox_begin('billing', 'i')"))
    assert 'stored settings of consumer "billing": there is no setting "x"' in str(
        refused(db, "SELECT semel.consumer('billing', '{\"retry_max\": 2}')"))
    consumer(db, "billing", retry_max=2, x=None)  # A3: what is damaged is named to be mended
    assert handle(db, "i") == ("run", "new")
    assert ask(db, "SELECT settings FROM semel.consumer") == [({"retry_max": 2},)]


# ---- keys and fingerprints -----------------------------------------------------------------------------

# E1
def test_step_key_is_the_digest_of_its_parts(db):
    parts = ["billing", "söurce", "id-1", "charge"]
    digest = hashlib.sha256(b"".join(struct.pack(">Q", len(p.encode())) + p.encode() for p in parts)).hexdigest()
    assert ask(db, "SELECT semel.step_key('billing', 'id-1', 'charge', 'söurce')") == [(digest,)]
    assert ask(db, "SELECT semel.step_key('billing', 'id-1', 'charge')") != [(digest,)]


def some_json(random_, depth=0):
    kind = random_.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return random_.choice([None, True, False, 0, -1, 1e21, 1e-7, 0.1, 123456.789, -0.000001, 5e-324, 1e300, 2**53])
    if kind == 1:
        return random_.randrange(-10**15, 10**15)
    if kind <= 4:
        return "".join(random_.choice("ab\"\\\n\t\x01\x7f/é€\u2028😀") for _ in range(random_.randrange(6)))
    if kind == 5:
        return [some_json(random_, depth + 1) for _ in range(random_.randrange(4))]
    return {"".join(random_.choice("aBéz\n€") for _ in range(random_.randrange(4))): some_json(random_, depth + 1)
            for _ in range(random_.randrange(5))}


def canonical(value):
    """RFC 8785, for the values above."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (int, float)):
        known = {1e21: "1e+21", 1e-7: "1e-7", -0.000001: "-0.000001", 5e-324: "5e-324", 1e300: "1e+300"}
        return known.get(value, repr(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return "{" + ",".join(canonical(k) + ":" + canonical(value[k]) for k in sorted(value)) + "}"


# A5, P56
def test_fingerprint_is_the_digest_of_the_canonical_form_however_it_is_spelled(db):
    random_ = random.Random(7)
    for _ in range(300):
        document = {"d": some_json(random_), "e": some_json(random_)}
        wanted = b"j" + hashlib.sha256(canonical(document).encode()).digest()[:16]
        for argument, text in [("payload", json.dumps(document)), ("raw", json.dumps(document, indent=2).encode())]:
            spelled = ask(db, "SELECT semel._fingerprint(%s, %s)", text if argument == "payload" else None,
                          psycopg2.Binary(text.encode() if isinstance(text, str) else text))[0][0]
            assert bytes(spelled) == wanted, (argument, document)


# The work grows with the size of the payload, not with its depth: 2^60 steps would not end.
@pytest.mark.parametrize("depth, kind", [(60, "j"), (64, "j"), (65, "r"), (3000, "r")])
def test_deeply_nested_payload_has_a_fingerprint_in_time(db, depth, kind):
    for opening, closing in (('{"a":', "}"), ("[", "]")):
        raw = (opening * depth + "1" + closing * depth).encode()
        found = bytes(ask(db, "SELECT semel._fingerprint(NULL, %s)", psycopg2.Binary(raw))[0][0])
        assert found == kind.encode() + hashlib.sha256(raw).digest()[:16]


# jsonb would write each out with 131,001 digits: minutes for its fingerprint, gigabytes for whoever takes it.
@pytest.mark.parametrize("number", ["1e131000", "-1.5E+131000", "1e-16000", "0e-16000"])
def test_numbers_with_enormous_exponents_cost_nothing(db, number):
    raw = ("[[" + ",".join([number] * 30000) + "]]").encode()
    ask(db, "SET statement_timeout = '20s'")
    consumer(db, "billing", effect="outside")
    told = call(db, "inbox_put", consumer="billing", message_id="i", raw=psycopg2.Binary(raw))[0]
    assert (told["act"], told["why"]) == ("ack", "new")
    db.commit()
    taken, = call(db, "inbox_take", consumer="billing")
    assert taken["payload"] is None and bytes(taken["raw"]) == raw
    assert ask(db, "SELECT semel.inbox_finish(%s)", taken["token"]) == [(True,)]
    db.commit()


def test_what_looks_like_such_a_number_within_a_string_is_json(db):
    many = {str(i): f"{i}e{i:04}" for i in range(9999)}
    raw = json.dumps({"id": "0e1234\\", "k1e9999": ['"1e5000', 1e300, 5e-324], **many})
    assert ask(db, "SELECT semel._huge(%s), semel._payload_json(convert_to(%s, 'UTF8')) = %s::jsonb", raw, raw,
               raw) == [(False, True)]
    for text, huge in [("1e399", False), ("1e400", True), ("[1,2E-1000]", True), ('"a"', False), ("", False)]:
        assert ask(db, "SELECT semel._huge(%s)", text) == [(huge,)], text


# I11, P56
@pytest.mark.parametrize("first, second, why", [
    ({"payload": '{"n": 1}'}, {"raw": b'{ "n":1.0 }'}, "duplicate"),
    ({"payload": '{"n": 1}'}, {"raw": b'{"n":2}'}, "conflict"),
    ({"raw": b"n is 1"}, {"raw": b"n is 2"}, "conflict"),
    ({"raw": b"n is 1"}, {"payload": '{"n": 1}'}, "duplicate"),
    ({"raw": b'{"n":9007199254740993}'}, {"raw": b'{"n":9007199254740992}'}, "duplicate"),
    ({"raw": b'{"n":9007199254740993}'}, {"raw": b'{"n":9007199254740995}'}, "conflict"),
    ({"payload": '{"n":9007199254740993}'}, {"payload": '{"n":9007199254740995}'}, "duplicate"),
    ({"raw": b"\xff"}, {"raw": b"\xfe"}, "conflict"),
    ({"raw": b'{"a":"\\u0000"}'}, {"raw": b'{"a":"\\u0001"}'}, "duplicate"),
    ({"fingerprint": b"1", "payload": "{}"}, {"fingerprint": b"1", "payload": "[]"}, "duplicate"),
    ({"fingerprint": b"1"}, {"fingerprint": b"2"}, "conflict"),
    ({"fingerprint": b"1"}, {"payload": "{}"}, "duplicate"),
    ({}, {"payload": "{}"}, "duplicate"),
])
def test_only_fingerprints_of_one_kind_are_compared(db, first, second, why):
    begin(db, "i", **first)
    ask(db, "SELECT semel.inbox_done('billing', 'i')")
    db.commit()
    assert begin(db, "i", **second)["why"] == why
    db.rollback()


# ---- roles ---------------------------------------------------------------------------------------------

NAMES = {"owner": "its owner", "app": "shop", "operator": "ops\"x", "worker": "hands"}


@pytest.fixture(scope="module")
def granted(pg_server):  # noqa: F811
    """A database that its owner has migrated, and roles with their grants."""
    made = Database(pg_server, "granted")
    assert "run this file again" in run_file(made, SOURCE / "sql/postgres/roles.sql", **NAMES)
    made.sql("".join(f'ALTER ROLE "{name}" LOGIN;' for name in (n.replace('"', '""') for n in NAMES.values())))
    for path in MIGRATIONS:
        run_file(made, path, role=NAMES["owner"])
    for _ in range(2):
        assert "have their rights" in run_file(made, SOURCE / "sql/postgres/roles.sql", **NAMES)
    made.sql('CREATE TABLE public.ledger (message_id text, amount bigint); GRANT ALL ON public.ledger TO "shop"')
    made.connect = Shop.connect.__get__(made)
    return made


def as_role(granted, role):
    return granted.connect(role=NAMES[role])


def test_application_does_its_work_by_functions_alone(granted):
    db = as_role(granted, "app")  # noqa: F811
    assert handle(db, "id-1") == ("run", "new")
    assert handle(db, "id-1") == ("ack", "duplicate")
    begin(db, "id-2")
    refused(db, None, error=psycopg2.IntegrityError)
    call(db, "inbox_fail", consumer="billing", message_id="id-3", payload="{}", **{"class": "transient"})
    owner = as_role(granted, "owner")
    consumer(owner, "billing", effect="outside", retry_max=2)
    owner.close()
    told = call(db, "inbox_claim", consumer="billing", message_id="id-4")[0]
    ask(db, "SELECT semel.inbox_renew(%s), semel.inbox_release(%s)", told["token"], told["token"])
    ask(db, "SELECT semel.consumer('billing'), semel.tick(), semel.step_key('c', 'i', 's'), "
            "semel.outbox_put('a', 'b', 'c')")
    call(db, "inbox_put", consumer="billing", message_id="id-5", raw=b"x")
    call(db, "inbox_take", consumer="billing", max=9)
    db.commit()
    db.close()


WRITES = {"INSERT", "UPDATE", "DELETE"}
# What a worker may not write; a role that is not named here may write nothing.
BARRED = {"schema": WRITES, "access": WRITES, "inbox": WRITES, "stream": {"UPDATE", "DELETE"},
          "audit": {"UPDATE", "DELETE"}}


def may(who, word, table, plain):
    if who == "app" or word == "TRUNCATE":
        return False
    return word == "SELECT" or (who == "worker" and word not in BARRED.get(table, ()) and plain)


@pytest.mark.parametrize("who", ["app", "operator", "worker"])
def test_role_can_do_to_the_tables_what_it_needs_and_nothing_else(granted, who):
    owner = as_role(granted, "owner")
    tables = ask(owner, """SELECT c.relname, c.relkind = 'r', min(a.attname::text) FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND a.attidentity = '' AND a.attgenerated = ''
        WHERE c.relnamespace = 'semel'::regnamespace AND c.relkind IN ('r', 'v') GROUP BY 1, 2 ORDER BY 1""")
    owner.close()
    assert {name for name, _, _ in tables} > {"record", "inbox", "outbox", "idempotency", *BARRED}
    db = as_role(granted, who)  # noqa: F811
    db.autocommit = True
    for table, plain, column in tables:
        tries = {"SELECT": f"SELECT * FROM semel.{table} LIMIT 1",
                 "INSERT": f"INSERT INTO semel.{table} ({column}) SELECT NULL WHERE false",
                 "UPDATE": f"UPDATE semel.{table} SET {column} = NULL WHERE false",
                 "DELETE": f"DELETE FROM semel.{table} WHERE false",
                 "TRUNCATE": f"TRUNCATE semel.{table}"}
        for word, sql in tries.items():
            if may(who, word, table, plain):
                ask(db, sql)
            else:  # a view cannot be truncated, and some cannot be written, by nobody
                assert refused(db, sql).pgcode in (("42501",) if plain else ("42501", "42809", "55000")), (who, sql)
    db.close()


@pytest.mark.parametrize("who", ["app", "operator", "worker"])
def test_role_cannot_change_the_schema(granted, who):
    db = as_role(granted, who)  # noqa: F811
    for sql in ["CREATE TABLE semel.mine ()", "DROP TABLE semel.record", "DROP FUNCTION semel.tick(integer)",
                "ALTER TABLE semel.record DISABLE TRIGGER ALL", "DROP TRIGGER begun_has_its_end ON semel.held",
                "CREATE OR REPLACE FUNCTION semel._now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
                "SET session_replication_role = replica", "ALTER SCHEMA semel RENAME TO mine"]:
        assert refused(db, sql).pgcode == "42501", sql
    db.close()


@pytest.mark.parametrize("who", ["app", "operator", "worker"])
def test_role_cannot_call_what_is_internal(granted, who):
    db = as_role(granted, who)  # noqa: F811
    allowed = ask(db, "SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'semel'::regnamespace "
                      "AND has_function_privilege(p.oid, 'EXECUTE') ORDER BY 1")
    public = ["consumer", "inbox_begin", "inbox_begin_many", "inbox_claim", "inbox_done", "inbox_done_many",
              "inbox_fail", "inbox_fail_many", "inbox_finish", "inbox_put", "inbox_release", "inbox_renew",
              "inbox_take", "key_begin", "key_claim", "key_fail", "key_finish", "key_outcome", "key_renew",
              "message_key", "outbox_put", "step_key", "tick"]
    commands = ["_operate", "_operator_business", "_operator_consumer", "_operator_correct", "_operator_key",
                "_operator_key_lock", "_operator_keys", "_operator_mark", "_operator_outbox", "_operator_rewind",
                "_operator_rows", "_operator_select", "_operator_selection", "consumer", "message_key"]
    assert [name for name, in allowed] == {"app": public, "operator": commands, "worker": []}[who]
    db.close()


def test_public_has_no_rights_and_every_definer_function_a_fixed_search_path(granted):
    db = as_role(granted, "owner")  # noqa: F811
    assert ask(db, "SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'semel'::regnamespace "
                   "AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee = 0))") == []
    assert ask(db, "SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'semel'::regnamespace "
                   "AND p.prosecdef AND (p.proconfig IS NULL OR NOT "
                   "'search_path=pg_catalog, semel, pg_temp' = ANY (p.proconfig))") == []
    assert ask(db, "SELECT count(*) > 10 FROM pg_proc AS p WHERE p.pronamespace = 'semel'::regnamespace "
                   "AND p.prosecdef") == [(True,)]
    db.close()
