# SPDX-License-Identifier: MIT
"""TLS is libpq's: what the URL asks for is what there is, and a server that cannot prove itself gets nothing."""
import shutil
import subprocess

import pytest

from conftest import run
from pg import Database, Server


def certificate(folder, name):
    """A certificate for localhost that has signed itself, and its key."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-keyout",
                    folder / f"{name}.key", "-out", folder / f"{name}.crt"], check=True, capture_output=True)
    return folder / f"{name}.crt", folder / f"{name}.key"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A database that only TLS leads to, and the certificate of its server."""
    if shutil.which("openssl") is None or shutil.which("psql") is None:
        pytest.skip("openssl or psql is not installed (apt-get install openssl postgresql-client)")
    server = Server()
    try:
        database = Database(server, "shop")
        crt, key = certificate(tmp_path_factory.mktemp("server"), "server")
        for path in (crt, key):
            copy = server.data / path.name
            shutil.copy(path, copy)
            copy.chmod(0o600)
            if server.owner:
                shutil.chown(copy, server.owner["user"], server.owner["group"])
        hba = server.data / "pg_hba.conf"
        hba.write_text("hostssl shop all all trust\nhost shop all all reject\n" + hba.read_text())
        server.psql("postgres", "ALTER SYSTEM SET ssl = on; SELECT pg_reload_conf()")
        yield database, crt
    finally:
        server.done()


def url(database, **parameters):
    return (f"postgres://postgres@localhost:{database.server.port}/{database.name}?hostaddr=127.0.0.1&"
            + "&".join(f"{name}={value}" for name, value in parameters.items()))


def test_verified_connection_is_encrypted_and_works(guarded):
    database, crt = guarded
    store = url(database, sslmode="verify-full", sslrootcert=crt)
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
    other, _ = certificate(tmp_path, "other")
    stranger = run("migrate", "--store", url(database, sslmode="verify-full", sslrootcert=other))
    assert stranger.code == 5 and "certificate verify failed" in stranger.err, stranger
