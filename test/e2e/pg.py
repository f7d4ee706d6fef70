# SPDX-License-Identifier: MIT
"""A private PostgreSQL server for end-to-end tests, and a fresh database in it for each test.

What test/pg/server.h is for C: a copy of the build folder's template data directory (the very same one), on a free port
of loopback, as user postgres where we are root, ended and removed by test/pg/leash.sh even when pytest is killed.
Import the fixtures `pg_server` (one a module) and `pg` (a migrated database a test) by name.
"""
import contextlib
import fcntl
import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile

import pytest

from conftest import run, wait_for  # noqa: F401  (for those who import it from here)

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
TEMPLATES = pathlib.Path(os.environ["SEMEL_BUILD"]) / "test" / "pg"
READY_S = 60


def programs():
    """The folder of the server's programs, or None: SEMEL_PG_BIN, else the newest of Debian's."""
    given = os.environ.get("SEMEL_PG_BIN")
    for folder in [given] if given else [f"/usr/lib/postgresql/{n}/bin" for n in range(30, 12, -1)] + ["/usr/bin"]:
        if os.access(f"{folder}/postgres", os.X_OK):
            return folder
    return None


def free_port():
    """A port of loopback that is this process's until it ends, also while nobody listens on it; as server_port() of
    test/server/process.h."""
    folder = pathlib.Path("/tmp/semel-test-ports")
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    while True:
        port = random.SystemRandom().randrange(10240, 32768)  # below the ports of outgoing connections
        lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
            return port
        except OSError:
            os.close(lock)


class Server:
    """A running server; see pg/server.h."""

    def __init__(self, *settings, of=None):
        """`of`: the primary that this one is to be a standby of."""
        self.bin, self.settings = programs(), settings
        if self.bin is None:
            pytest.skip("there is no PostgreSQL server here (apt-get install postgresql; or SEMEL_PG_BIN=FOLDER)")
        self.owner = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            self.owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="semel-pg-", dir="/tmp"))
        self.leash = subprocess.Popen(["sh", SOURCE / "test/pg/leash.sh", self.dir], stdin=subprocess.PIPE,
                                      start_new_session=True)
        self.dir.chmod(0o755)
        if self.owner:
            os.chown(self.dir, self.owner["user"], self.owner["group"])
        self.data, self.log = self.dir / "data", open(self.dir / "log", "ab")
        self.port, self.process, self.models = free_port(), None, set()
        if of is None:
            self._copy_template()
        else:
            self._program("pg_basebackup", "-D", self.data, "-d",
                          f"host=127.0.0.1 port={of.port} user=postgres application_name=standby", "-R", "-X", "stream",
                          "-c", "fast", "--no-sync")
        self.start()

    def _program(self, name, *args):
        return subprocess.run([f"{self.bin}/{name}", *map(str, args)], stdin=subprocess.DEVNULL, stdout=self.log,
                              stderr=self.log, cwd="/", check=True, **self.owner)

    def _copy_template(self):
        TEMPLATES.mkdir(parents=True, exist_ok=True)
        template = TEMPLATES / ("pg-template" + self.bin.replace("/", "-"))
        with open(f"{template}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if template.exists():
                subprocess.run(["cp", "-a", "--reflink=auto", template, self.data], check=True)
                return
            self._program("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C",
                          "--no-sync")
            made = f"{template}.{os.getpid()}"
            subprocess.run(["cp", "-a", self.data, made], check=True)
            os.rename(made, template)

    def start(self):
        """Starts it, or starts it again on the same port, and waits until it answers."""
        options = ("listen_addresses=127.0.0.1", f"unix_socket_directories={self.dir}", "fsync=off",
                   "dynamic_shared_memory_type=mmap", *self.settings)
        self.process = subprocess.Popen(
            [f"{self.bin}/postgres", "-D", self.data, "-p", str(self.port), *(f"-c{option}" for option in options)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd="/", **self.owner,
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"})
        wait_for(self._answers, f"the server in {self.dir} answers")

    def _answers(self):
        assert self.process.poll() is None, (self.dir / "log").read_text(errors="replace")[-4000:]
        return self.psql("postgres", "SELECT 1", check=False).returncode == 0

    def standby(self, *settings):
        """A streaming standby of this one."""
        return Server(*settings, of=self)

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.wait(READY_S)

    def done(self):
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        self.log.close()
        self.leash.stdin.close()
        self.leash.wait(READY_S)

    def psql(self, database, text, check=True, role="postgres"):
        done = subprocess.run(
            ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port), "-U", role, "-d",
             database], input=text, capture_output=True, text=True, check=False,
            env={**os.environ, "PGCONNECT_TIMEOUT": "30"})
        assert done.returncode == 0 or not check, done.stderr
        return done

    def model(self, fill):
        """The name of the database that `fill` has filled, for others to be made like it."""
        name = f"model_{fill.__name__}"
        if name not in self.models:
            self.models.add(name)
            fill(Database(self, name))
            self.psql(name, (SOURCE / "test/pg/model.sql").read_text())
        return name

    def url(self, database="postgres", role="postgres"):
        return f"postgres://{role}@127.0.0.1:{self.port}/{database}"


class Database:
    """A database of a server, plain SQL on it, and semel on it."""

    def __init__(self, server, name, model=None):
        """An empty one; or like `model`, a function that fills the first database of its kind on this server: where
        the last test has changed only rows they are deleted, which takes a tenth of the time (test/pg/model.h)."""
        self.server, self.name, self.url = server, name, server.url(name)
        like = server.model(model) if model else "template1"
        if model and server.psql(name, "SELECT model.reset();", check=False).stdout == "1\n":
            return
        server.psql("postgres", f'''DROP DATABASE IF EXISTS "{name}" WITH (FORCE);
                                    CREATE DATABASE "{name}" TEMPLATE "{like}";''')

    def sql(self, text, role="postgres"):
        """The rows, each a tuple of texts; NULL is ''."""
        out = self.server.psql(self.name, text, role=role).stdout
        return [tuple(line.split("|")) for line in out.splitlines()]

    def semel(self, *args, **more):
        return run(*args, "--store", self.url, **more)


def migrated(database):
    """Semel's tables, as its program makes them."""
    result = database.semel("migrate")
    assert result.code == 0, result


@pytest.fixture(scope="module")
def pg_server():
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed (apt-get install postgresql-client)")
    server = Server()
    yield server
    server.done()


@pytest.fixture
def empty_pg(pg_server):
    """A database in which nobody has run `semel migrate`."""
    return Database(pg_server, "empty")


@pytest.fixture
def pg(pg_server):
    """A database with Semel's tables."""
    return Database(pg_server, "books", model=migrated)
