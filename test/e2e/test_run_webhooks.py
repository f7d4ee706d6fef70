# SPDX-License-Identifier: MIT
"""Webhooks of others: signed requests to `semel run`, by every provider's scheme, with the settings of
docs/webhooks.md; and what strangers send. Signatures are made by Python's hmac."""
import base64
import hashlib
import hmac
import json
import os
import pathlib
import re
import signal
import socket
import time

import pytest

from conftest import run
from daemon import Daemon
from listen import TOKEN, Listen

PAGE = pathlib.Path(os.environ["SEMEL_SOURCE"]) / "docs" / "webhooks.md"
KEY = base64.b64encode(b"a key of thirty-two bytes, or so").decode()
SECRETS = {"STRIPE_SECRET": "whsec_of_stripe", "GITHUB_SECRET": "It's a Secret to Everybody",
           "SHOPIFY_SECRET": "hush-hush", "PARTNER_SECRET": f"whsec_{KEY}",
           "SLACK_SECRET": "8f742231b10e8888abcd99yyyzzz85a5"}


def mac(secret, content, how="sha256"):
    return hmac.new(secret.encode() if isinstance(secret, str) else secret, content, how)


def stripe(body, secret=SECRETS["STRIPE_SECRET"], at=0):
    now = int(time.time()) + at
    return {"Stripe-Signature": f"t={now},v1={mac(secret, b'%d.' % now + body).hexdigest()},v0=00"}


def github(body, delivery="d-1"):
    signed = mac(SECRETS["GITHUB_SECRET"], body).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={signed}", "X-Hub-Signature": "sha1=00", "X-GitHub-Delivery": delivery,
            "X-GitHub-Event": "push"}


def shopify(body, id="w-1"):
    signed = base64.b64encode(mac(SECRETS["SHOPIFY_SECRET"], body).digest()).decode()
    return {"X-Shopify-Hmac-SHA256": signed, "X-Shopify-Webhook-Id": id, "X-Shopify-Topic": "orders/create"}


def standard(body, id="msg_1", at=0):
    now = int(time.time()) + at
    signed = mac(base64.b64decode(KEY), b"%s.%d.%s" % (id.encode(), now, body)).digest()
    return {"webhook-id": id, "webhook-timestamp": str(now),
            "webhook-signature": f"v1a,xx v1,{base64.b64encode(signed).decode()}"}


def slack(body, at=0):
    now = int(time.time()) + at
    signed = mac(SECRETS["SLACK_SECRET"], b"v0:%d:%s" % (now, body)).hexdigest()
    return {"X-Slack-Signature": f"v0={signed}", "X-Slack-Request-Timestamp": str(now)}


def documented():
    """The files of the page: name -> text."""
    return {found[1]: found[0] for found in re.findall(r"```yaml\n(# (\w+)\.yaml\n.*?)```", PAGE.read_text(), re.S)}


def routes(text):
    """The routes of a documented file, as text that stands below `routes:`."""
    return text.split("routes:\n", 1)[1]


@pytest.fixture
def events(store):
    store.sql("CREATE TABLE events (id TEXT, type TEXT, body TEXT)")
    return store


class Hooks(Daemon):
    """All routes of the page in one process, and two more: with a token, and with secrets in files."""

    def __init__(self, folder, store):
        self.endpoint = Listen()
        super().__init__(folder, {"store": store.url}, env=SECRETS)
        (folder / "new").write_text("the-new-secret\n")
        (folder / "old").write_text("the-old-secret\n")
        more = """
  both:
    from: {listen: "127.0.0.1:8090", hosts: [hooks.example.com], token: "${LISTEN_TOKEN}",
           signature: {scheme: github, secret: "${GITHUB_SECRET}"}}
    values: [id, type, body]
    do: {sql: "INSERT INTO events (id, type, body) VALUES ($1, $2, $3)"}
  files:
    from: {listen: "127.0.0.1:8090", hosts: [hooks.example.com], body_max: 100000,
           signature: {scheme: stripe, secret_file: [new, old]}}
    values: [id, type, body]
    do: {sql: "INSERT INTO events (id, type, body) VALUES ($1, $2, $3)"}
"""
        text = (f"store: {store.url}\nadmin: {{listen: '127.0.0.1:{self.port}'}}\nlog: {{format: json, level: debug}}\n"
                "routes:\n" + "".join(routes(text) for text in documented().values()) + more)
        self.file.write_text(text.replace("127.0.0.1:8090", f"127.0.0.1:{self.endpoint.port}"))

    def post(self, path, body, headers=None, token=None):
        named = {name.replace("-", "_"): value for name, value in (headers or {}).items()}
        return self.endpoint.post(body, path=path, token=token, **named)

    def raw(self, request):
        """The status line and the rest, of bytes sent as they are."""
        with socket.create_connection(("127.0.0.1", self.endpoint.port), timeout=30) as link:
            link.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"\n"):
                piece = link.recv(65536)
                if not piece:
                    break
                answer += piece
        return int(answer.split(b" ", 2)[1]), answer

    def refused(self, why):
        return self.metric("semel_ingest_signatures_refused_total", why=why)


@pytest.fixture
def hooks(tmp_path, events):
    with Hooks(tmp_path, events) as made:
        made.ready()
        yield made


def test_every_documented_route_takes_what_its_provider_signs(hooks, events):
    body = json.dumps({"id": "evt_1", "type": "invoice.paid", "name": "Köln"}, ensure_ascii=False).encode()
    assert set(documented()) == {"stripe", "github", "shopify", "standard", "slack"}
    digest = hashlib.sha256(body).hexdigest()
    for path, headers, id, kind in (("/stripe", stripe(body), "evt_1", "invoice.paid"),
                                    ("/github", github(body), "d-1", "push"),
                                    ("/shopify", shopify(body), "w-1", "orders/create"),
                                    ("/slack", slack(body), digest, "slack"),
                                    ("/partner", standard(body), "msg_1", "invoice.paid")):
        assert hooks.post(path, body, headers)[0] == 202, path
        # I9: again, and with whatever else is not signed, it is the same message.
        assert hooks.post(path, body, headers)[0] == 200, path
        other = {**headers, "ce-source": "elsewhere", "ce-id": "x", "Content-Type": "application/cloudevents+json"}
        assert hooks.post(path, body, other)[0] == 200, path
        assert events.sql("SELECT id, type, body FROM events") == [(id, kind, body.decode())], path
        events.sql("DELETE FROM events")
    kept = events.sql("SELECT headers FROM semel_inbox WHERE message_id = 'd-1'")
    assert "757107ea" not in str(kept) and "sha256=" not in str(kept)  # a signature without a time is not stored


def test_nobody_gives_a_signed_request_another_identity_by_connection(hooks, events):
    body = b'{"id":"evt_1","type":"push"}'
    for path, headers, header in (("/github", github(body), "X-GitHub-Delivery"), ("/shopify", shopify(body),
                                  "X-Shopify-Webhook-Id"), ("/partner", standard(body), "webhook-id")):
        for connection, status in (("close", 202), (header, 200), (f"close, {header.upper()}", 200)):
            lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "Connection": connection}.items())
            head = f"POST {path} HTTP/1.1\r\nHost: hooks.example.com\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
            found, answer = hooks.raw(head.encode() + body)
            assert found == status, (path, connection, answer)
    assert events.sql("SELECT DISTINCT status FROM semel_inbox") == [("completed",)]


def test_an_event_of_stripe_comes_again_with_another_count_of_pending_webhooks(hooks, events):
    body = b'{"id":"evt_1","type":"t","cents":1,"pending_webhooks":%d}'
    for pending, status in ((2, 202), (1, 200), (0, 200)):
        assert hooks.post("/stripe", body % pending, stripe(body % pending))[0] == status
    other = (body % 2).replace(b'"cents":1', b'"cents":2')  # I11
    assert hooks.post("/stripe", other, stripe(other))[0] == 409


def test_a_body_changed_by_one_byte_is_refused_and_counted(hooks, events):
    body = b'{"id":"evt_1","type":"t","cents":100}'
    changed = body.replace(b"100", b"900")
    for path, sign in (("/stripe", stripe), ("/github", github), ("/shopify", shopify), ("/partner", standard),
                       ("/slack", slack)):
        status, problem = hooks.post(path, changed, sign(body))
        assert status == 401 and problem["detail"].startswith("wrong signature: "), problem
    assert hooks.refused("wrong_signature") == 5
    status, problem = hooks.post("/stripe", body)
    assert status == 401 and problem["detail"] == "no signature: there is no header Stripe-Signature"
    assert hooks.refused("no_signature") == 1
    assert events.sql("SELECT count(*) FROM semel_inbox") == [(0,)]
    assert events.sql("SELECT count(*) FROM events") == [(0,)]


def test_late_and_early_ones_are_refused(hooks, events):
    body = b'{"id":"evt_1","type":"t"}'
    for path, sign in (("/stripe", stripe), ("/partner", standard), ("/slack", slack)):
        status, problem = hooks.post(path, body, sign(body, at=-301))
        assert status == 401 and problem["detail"].startswith("too old: "), problem
        status, problem = hooks.post(path, body, sign(body, at=330))
        assert status == 401 and problem["detail"].startswith("too new: "), problem
        assert hooks.post(path, body, sign(body, at=-290))[0] == 202
    assert (hooks.refused("too_old"), hooks.refused("too_new")) == (3, 3)


def test_hostile_headers_are_refused(hooks, events):
    body = b'{"id":"evt_1","type":"t"}'
    good = stripe(body)["Stripe-Signature"]
    head = f"POST /stripe HTTP/1.1\r\nHost: hooks.example.com\r\nContent-Length: {len(body)}\r\n"
    for lines, status in ((f"Stripe-Signature: {good}\r\nStripe-Signature: {good}\r\n", 401),
                          (f"Stripe-Signature: {good}\r\nstripe-signature: t=1,v1=00\r\n", 401),
                          ("Stripe-Signature: " + "v1=00," * 1000 + good + "\r\n", 401),
                          ("Stripe-Signature: " + "x" * 200000 + "\r\n", 431),
                          ("Stripe-Signature:\r\n", 401),
                          (f"Stripe-Signature: {good.replace('t=', 't=-')}\r\n", 401),
                          (f"Stripe-Signature: {good}, {good}\r\n", 401)):
        found, answer = hooks.raw((head + lines + "\r\n").encode() + body)
        assert found == status, (lines[:80], answer[:300])
    assert hooks.raw((head + f"STRIPE-SIGNATURE: {good}\r\n\r\n").encode() + body)[0] == 202
    assert events.sql("SELECT id FROM events") == [("evt_1",)]


def test_a_chunked_body_is_signed_as_a_whole(hooks, events):
    body = b'{"id":"evt_%d","type":"t"}'
    for n, cut in ((1, 1), (2, 7)):
        whole = body % n
        pieces = [whole[i:i + cut] for i in range(0, len(whole), cut)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        head = ("POST /stripe HTTP/1.1\r\nHost: hooks.example.com\r\nTransfer-Encoding: chunked\r\n"
                f"Stripe-Signature: {stripe(whole)['Stripe-Signature']}\r\n\r\n").encode()
        assert hooks.raw(head + chunks)[0] == 202
        assert hooks.raw(head + chunks.replace(b"\r\n0\r\n", b"\r\n1\r\n \r\n0\r\n"))[0] == 401
    assert events.sql("SELECT id FROM events ORDER BY id") == [("evt_1",), ("evt_2",)]


def test_a_large_body_is_checked_beside_others(hooks, events):
    body = json.dumps({"id": "evt_large", "type": "t", "x": "y" * 90000}).encode()
    assert hooks.post("/files", body, stripe(body, "the-old-secret"))[0] == 202
    assert hooks.post("/files", body[:-1] + b" ", stripe(body, "the-old-secret"))[0] == 401
    assert hooks.post("/files", body + b" " * 20000, stripe(body, "the-old-secret"))[0] == 413


def test_token_and_signature_are_both_needed_where_both_are_set(hooks):
    body = b'{"id":"evt_1","type":"t"}'
    assert hooks.post("/both", body, github(body))[0] == 401
    status, problem = hooks.post("/both", body, token=TOKEN)
    assert status == 401 and problem["detail"].startswith("no signature"), problem
    assert hooks.post("/both", body, github(body), token=TOKEN)[0] == 202
    assert len(hooks.lines("a token is missing or wrong")) == 1
    told, = hooks.lines("refused a webhook for its signature")
    assert (told["route"], told["why"], told["requests"]) == ("both", "no_signature", 1)


def test_refusals_fill_no_log_and_no_secret_is_in_it(hooks, tmp_path):
    body = b'{"id":"evt_1","type":"t"}'
    began = time.monotonic()
    for _ in range(200):
        assert hooks.post("/stripe", body, {"Stripe-Signature": "t=1,v1=deadbeef"})[0] == 401
    assert hooks.refused("wrong_signature") == 200
    assert len(hooks.lines("refused a webhook for its signature")) <= time.monotonic() - began + 2
    shown = hooks.log() + run("check", hooks.file, env={**SECRETS, "LISTEN_TOKEN": TOKEN}).out
    assert "deadbeef" not in shown
    for secret in [*SECRETS.values(), "the-new-secret", "the-old-secret"]:
        assert secret not in shown


def test_secrets_change_by_a_reload(hooks, tmp_path):
    body = b'{"id":"evt_%d","type":"t"}'
    for n, secret in enumerate(("the-old-secret", "the-new-secret")):
        assert hooks.post("/files", body % n, stripe(body % n, secret))[0] == 202
    (tmp_path / "old").write_text("the-newest-secret")
    hooks.signal(signal.SIGHUP)
    hooks.until(lambda: hooks.lines("reloaded certificates, tokens and secrets"), "it is read")
    assert hooks.post("/files", body % 2, stripe(body % 2, "the-old-secret"))[0] == 401
    for n, secret in enumerate(("the-newest-secret", "the-new-secret")):
        assert hooks.post("/files", body % (n + 3), stripe(body % (n + 3), secret))[0] == 202
    text = hooks.file.read_text()
    (tmp_path / "new").write_text("a-token-in-the-place-of-signatures")
    failed = "reload failed; old certificates, tokens and secrets stay in use"
    for n, other in enumerate(("token_file: new", "signature: {scheme: github, secret_file: [new, old]}")):
        hooks.file.write_text(text.replace("signature: {scheme: stripe, secret_file: [new, old]}", other))
        hooks.signal(signal.SIGHUP)
        told = hooks.until(lambda: hooks.lines(failed)[n:], "it is told")[0]
        assert "files" in told["error"] and "restart" in told["error"]
        assert hooks.post("/files", body % 9, token="a-token-in-the-place-of-signatures")[0] == 401


def test_a_reload_that_fails_for_one_route_changes_no_other(hooks, tmp_path):
    body = b'{"id":"evt_1","type":"t"}'
    (tmp_path / "old").write_text("the-newest-secret")
    head, both = hooks.file.read_text().split("  both:\n")
    hooks.file.write_text(f"{head}  both:\n{both.replace('scheme: github', 'scheme: stripe')}")
    hooks.signal(signal.SIGHUP)
    failed = "reload failed; old certificates, tokens and secrets stay in use"
    told, = hooks.until(lambda: hooks.lines(failed), "it is told")
    assert "routes.both" in told["error"]
    assert hooks.post("/files", body, stripe(body, "the-newest-secret"))[0] == 401
    assert hooks.post("/files", body, stripe(body, "the-old-secret"))[0] == 202


@pytest.mark.parametrize("settings, told", [
    ("false", "lacks token"),
    ("{scheme: stripe, secret: '${NOTHING}'}", "0 bytes; it must have 8 to 255"),
    ("{scheme: stripe, secret_file: empty}", "it is empty"),
    ("{scheme: stripe, secret: []}", "an empty list"),
    ("{scheme: stripe}", "lacks secret"),
    ("{secret: '${LONG}'}", "lacks scheme"),
    ("{scheme: stripe, secret: in-the-file}", "must not stand in the file"),
    ("{scheme: stripe, secret: ['${LONG}', in-the-file]}", "must not stand in the file"),
    ("{scheme: strpie, secret: '${LONG}'}", "did you mean stripe?"),
    ("{scheme: standard, secret: '${LONG}'}", "must begin with whsec_"),
    ("{scheme: github, secret: '${LONG}', tolerance: 5m}", "GitHub signs no time"),
    ("{scheme: github, secret: '${LONG}', algorithm: sha1}", "is for scheme hmac"),
    ("{scheme: hmac, secret: '${LONG}'}", "lacks header"),
    ("{scheme: hmac, secret: '${LONG}', header: 'X Y'}", "ASCII only"),
    ("{scheme: hmac, secret: '${LONG}', header: X, algorithm: md5}", "sha256, sha512 or sha1"),
    ("{scheme: hmac, secret: '${LONG}', header: X, tolerance: 5m}", "no time is signed"),
    ("{scheme: hmac, secret: '${LONG}', header: X, timestamp_header: x}", "one header for two things"),
    ("{scheme: hmac, secret: '${LONG}', header: X, content: '{timestamp}.{body}'}", "needs timestamp_header"),
    ("{scheme: hmac, secret: '${LONG}', header: X, timestamp_header: T, content: '{body}'}", "could change the time"),
    ("{scheme: hmac, secret: '${LONG}', header: X, timestamp_header: T, content: '{timestamp}{body}'}", "between"),
    ("{scheme: hmac, secret: '${LONG}', header: X, content: 'body'}", "must have {body} once"),
    ("{scheme: stripe, secret: ['" + "', '".join(["${LONG}"] * 9) + "']}", "9 secrets; at most 8"),
])
def test_settings_that_protect_nothing_are_refused_at_the_start(tmp_path, events, settings, told):
    (tmp_path / "empty").write_text("\n")
    file = tmp_path / "semel.yaml"
    file.write_text(f"store: {events.url}\nroutes:\n  r:\n    from:\n      listen: 127.0.0.1:8090\n"
                    f"      signature: {settings}\n    do: {{sql: SELECT 1}}\n")
    result = run("run", file, env={"NOTHING": "", "LONG": "a-secret-of-the-tests"})
    assert result.code == 1 and told in result.err, result
    assert "a-secret-of-the-tests" not in result.err and "in-the-file" not in result.err.replace("in-the-file:", "")


def test_check_shows_what_is_checked(tmp_path, events):
    for name, text in documented().items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        result = run("check", file, env={**SECRETS, "DATABASE_URL": events.url})
        assert result.code == 0, result
        line, = [line for line in result.out.splitlines() if line.strip().startswith("connection")]
        assert "by 1 secret" in line and (", at most 5m old" in line) == (name in ("stripe", "standard", "slack"))
        key, = [line for line in result.out.splitlines() if line.strip().startswith("key ")]
        assert ("it is not signed" in key) == (name in ("github", "shopify"))
        rules = {"stripe": "json:/id", "github": "header:X-GitHub-Delivery", "shopify": "header:X-Shopify-Webhook-Id",
                 "standard": "header:webhook-id", "slack": "digest"}
        assert f"the id is {rules[name]}" in key


@pytest.mark.parametrize("scheme, id, signed", [
    ("standard", None, True), ("standard", "header:Webhook-Id", True), ("standard", "header:X-Id", False),
    ("stripe", None, True), ("stripe", "header:X-Id", False), ("github", "digest", True), ("github", "json:/id", True),
    ("hmac", None, False), ("hmac", "json:/id", True), ("hmac", "property:message_id", False)])
def test_check_warns_of_an_id_that_is_not_signed(tmp_path, events, scheme, id, signed):
    file = tmp_path / "semel.yaml"
    more = ", header: X-Sign" if scheme == "hmac" else ""
    file.write_text(f"store: {events.url}\nroutes:\n  r:\n    from:\n      listen: 127.0.0.1:8090\n"
                    f"      signature: {{scheme: {scheme}, secret: '${{PARTNER_SECRET}}'{more}}}\n"
                    + (f"    id: {id}\n" if id else "") + "    do: {sql: SELECT 1}\n")
    result = run("check", file, env=SECRETS)
    assert result.code == 0, result
    key, = [line for line in result.out.splitlines() if line.strip().startswith("key ")]
    assert ("it is not signed" in key) != signed, key
