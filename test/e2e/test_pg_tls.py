# SPDX-License-Identifier: MIT
"""TLS is libpq's: what the URL asks for is what there is, and a server that cannot prove itself gets nothing."""
import shutil

import pytest

from certs import Authority
from conftest import run
from pg import Database, Server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A database that only TLS leads to, and the authority of its server's certificate."""
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed (apt-get install postgresql-client)")
    authority = Authority(tmp_path_factory.mktemp("authority"))
    server = Server()
    try:
        database = Database(server, "shop")
        for path in authority.issue("server", "DNS:localhost"):
            copy = server.data / path.name
            shutil.copy(path, copy)
            copy.chmod(0o600)
            if server.owner:
                shutil.chown(copy, server.owner["user"], server.owner["group"])
        hba = server.data / "pg_hba.conf"
        hba.write_text("hostssl shop all all trust\nhost shop all all reject\n" + hba.read_text())
        server.psql("postgres", "ALTER SYSTEM SET ssl = on; SELECT pg_reload_conf()")
        yield database, authority
    finally:
        server.done()


def url(database, **parameters):
    return (f"postgres://postgres@localhost:{database.server.port}/{database.name}?hostaddr=127.0.0.1&"
            + "&".join(f"{name}={value}" for name, value in parameters.items()))


def test_verified_connection_is_encrypted_and_works(guarded):
    database, authority = guarded
    store = url(database, sslmode="verify-full", sslrootcert=authority.file)
    done = run("migrate", "--store", store)
    assert done.code == 0, done
    sent = run("send", "--store", store, "--consumer", "c", "--id", "m1", "{}")
    assert sent.code == 0, sent
    again = run("send", "--store", store, "--consumer", "c", "--id", "m1", "{}")
    assert again.code == 0 and "duplicate" in again.out, again


def test_connection_without_tls_is_refused_by_such_a_server(guarded):
    database, _ = guarded
    plain = run("status", "--store", url(database, sslmode="disable"))
    assert plain.code == 5 and "pg_hba.conf" in plain.err, plain


def test_server_with_another_certificate_gets_nothing(guarded, tmp_path):
    database, _ = guarded
    other = Authority(tmp_path, "other")
    stranger = run("migrate", "--store", url(database, sslmode="verify-full", sslrootcert=other.file))
    assert stranger.code == 5 and "certificate verify failed" in stranger.err, stranger
