# SPDX-License-Identifier: MIT
"""How Semel comes onto a machine: what tools/setup asks, the Debian packages in a bare Debian 12, the Containerfile.

The packages are built (or taken from the folder SEMEL_DEB) and installed with SEMEL_LONG=1, as root, where debootstrap
and debhelper are; the bare system is kept in ~/.cache/semel for the next time. No test builds the image: that needs a
container engine.
"""
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile

import pytest

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
PACKAGES = ["semel", "libsemel0", "libsemel-dev", "libsqlite3-mod-semel"]


def text(path):
    return (SOURCE / path).read_text(encoding="utf-8")


def version():
    return re.search(r"^  version: '(.*)',$", text("meson.build"), re.MULTILINE)[1]


# ---- what must agree


def test_every_file_has_the_same_version():
    released = re.search(r"^## \[(\d.*?)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)
    assert text("debian/changelog").startswith(f"semel ({version()}) ")
    assert released[1] == version()


def test_the_changelog_has_the_version_of_the_schema():
    told = re.search(r"schema: PostgreSQL (\d+), SQLite (\d+)", text("CHANGELOG.md"))
    assert [int(n) for n in told.groups()] == [len(list((SOURCE / "sql" / kind).glob("[0-9]*.sql")))
                                               for kind in ("postgres", "sqlite")]


def test_what_a_package_is_built_with_is_installed_before():
    wanted = re.search(r"^Build-Depends: (.*?)^\S", text("debian/control"), re.MULTILINE | re.DOTALL)[1]
    setup = text("tools/setup")
    installed = set(" ".join(re.findall(r"^(?:build|deb)=\((.*?)\)", setup, re.MULTILINE | re.DOTALL)).split())
    names = {part.split()[0].replace("debhelper-compat", "debhelper") for part in wanted.split(",")}
    assert len(names) > 10 and names <= installed


def test_what_the_image_is_made_of_is_there():
    lines = text("Containerfile").splitlines()
    (local, built) = (line.split()[1:] for line in lines if line.startswith("COPY"))
    assert local == [".", "."] and built[:2] == ["--from=build", "/src/build/deb/semel_*.deb"]
    assert "RUN CI=true make deb" in lines and re.search(r"^deb:$", text("Makefile"), re.MULTILINE)
    left_out = {line for line in text(".dockerignore").splitlines() if not line.startswith("#")}
    assert left_out == {"build", ".git"}


# ---- tools/setup


@pytest.fixture
def setup(tmp_path):
    """tools/setup on a machine that has no package, whose apt-get only notes what it was asked for."""
    tools = {"dpkg-query": "exit 1", "apt-cache": "exit 0", "sudo": '[ "$1" != -n ] || shift; exec "$@"',
             "apt-get": f'echo "$@" >>{tmp_path}/apt'}
    (tmp_path / "bin").mkdir()
    for name, does in tools.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(answer=None, **env):
        """(exit code, what it printed, what apt-get installed); an answer is typed on a terminal."""
        (tmp_path / "apt").write_text("")
        full = {name: value for name, value in os.environ.items() if name not in ("CI", "YES")}
        full.update(env, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run([SOURCE / "tools/setup", "build"], stdin=subprocess.DEVNULL if answer is None else theirs,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=full, timeout=60,
                              check=False)
        os.close(ours)
        os.close(theirs)
        return done.returncode, done.stdout, "install -y" in (tmp_path / "apt").read_text()
    return run


def test_without_a_terminal_nothing_is_installed_and_the_way_on_is_shown(setup):
    code, out, installed = setup()
    assert code == 1 and not installed and "YES=1" in out
    assert re.search(r"^  apt-get update && apt-get install .*\bmeson\b", out, re.MULTILINE)


@pytest.mark.parametrize("env", [{"YES": "1"}, {"CI": "true"}])
def test_yes_and_ci_install_without_a_question(setup, env):
    code, out, installed = setup(**env)
    assert code == 0 and installed and "[y/N]" not in out


@pytest.mark.parametrize("answer, agreed", [("y", True), ("n", False), ("", False)])
def test_a_person_is_asked_first(setup, answer, agreed):
    code, out, installed = setup(answer)
    assert "meson" in out and installed == agreed and (code == 0) == agreed


def test_make_install_installs_no_packages():
    dry = subprocess.run(["make", "-n", "install"], cwd=SOURCE, capture_output=True, text=True, check=True).stdout
    assert "tools/setup" not in dry and "meson install" in dry


# ---- a bare Debian 12


INSIDE = """
mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" || exit 1
exec chroot "$1" env -i $3 HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    sh -ec "$2"
"""


# In a chroot the root is no mount point, and its mounts are those of the namespace around it.
UNSHARE = ["unshare", "-m"]
if subprocess.run([*UNSHARE, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
    UNSHARE += ["--propagation", "unchanged"]


class Root:
    """A bare Debian 12 in a folder. Commands run in namespaces of their own: nothing of theirs outlives them."""

    def __init__(self, path):
        self.path = path

    def run(self, command):
        proxies = " ".join(f"{name}={value}" for name, value in os.environ.items() if name.lower().endswith("_proxy"))
        done = subprocess.run([*UNSHARE, "-p", "-f", "--kill-child", "sh", "-c", INSIDE, "sh", self.path,
                               command, proxies], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    def install(self, *names):
        return self.run("apt-get -qq install -y --no-install-recommends " + " ".join(names))

    def files(self):
        """All but what apt, dpkg and ldconfig keep for themselves."""
        theirs = ("/proc", "/dev", "/tmp", "/packages", "/var/log", "/var/cache", "/var/lib/apt", "/var/lib/dpkg")
        left_out = " -o ".join(f"-path {path}" for path in theirs)
        return set(self.run(f"find / -xdev \\( {left_out} \\) -prune -o -print").splitlines())


def bare(folder):
    """Unpacks a bare Debian 12 with the machine's own sources of packages."""
    kept = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "semel" / "bookworm.tar"
    if not kept.exists():
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder], check=True, stdout=subprocess.DEVNULL)
        for name in ("sources.list", "sources.list.d", "apt.conf.d"):
            if pathlib.Path("/etc/apt", name).exists():
                subprocess.run(["cp", "-rT", f"/etc/apt/{name}", f"{folder}/etc/apt/{name}"], check=True)
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", f"{folder}/etc/{name}")
        Root(folder).run("apt-get -qq update")
        kept.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", folder, "-cf", f"{kept}.part", "."], check=True)
        os.replace(f"{kept}.part", kept)
    else:
        subprocess.run(["tar", "-C", folder, "-xf", kept], check=True)


@pytest.fixture(scope="module")
def root():
    if os.environ.get("SEMEL_LONG") != "1":
        pytest.skip("SEMEL_LONG=1 builds and installs the packages")
    if os.geteuid() != 0:
        pytest.skip("a bare system needs root")
    for program in ("debootstrap", "dh", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (tools/setup long)")
    built = pathlib.Path(os.environ.get("SEMEL_DEB", SOURCE / "build" / "deb"))
    if "SEMEL_DEB" not in os.environ:
        subprocess.run([SOURCE / "tools/deb"], check=True)
    folder = tempfile.mkdtemp(prefix="semel-root-")
    try:
        os.chmod(folder, 0o755)
        bare(folder)
        os.mkdir(f"{folder}/packages")
        for name in PACKAGES:
            (made,) = built.glob(f"{name}_{version()}_*.deb")
            shutil.copy(made, f"{folder}/packages/{name}.deb")
        yield Root(folder)
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def test_the_program_runs_on_a_bare_system_and_a_purge_leaves_what_is_the_operators(root):
    before = root.files()
    root.install("/packages/semel.deb")
    assert root.run("semel version").startswith(f"semel {version()}\n")
    assert root.run("cd /tmp && semel demo --seconds 2").splitlines()[-1] == "lost 0, doubled 0"
    assert root.run("cd /etc/semel && SEMEL_TOKEN=sixteen-bytes-and-more semel check /usr/share/semel/example.yaml")
    assert root.run("find /etc/systemd /etc/semel -name '*semel@*' -o -path '/etc/semel/*'") == "", "it starts nothing"

    root.run("echo 'store: sqlite:shop.db' >/etc/semel/billing.yaml")
    wants = "/etc/systemd/system/multi-user.target.wants"
    root.run(f"mkdir -p {wants} && ln -s /lib/systemd/system/semel@.service {wants}/semel@billing.service")
    root.run("apt-get -qq purge -y --autoremove semel")
    assert root.files() - before - {wants} == {"/etc/semel", "/etc/semel/billing.yaml"}
    root.run("rm -r /etc/semel")


def test_library_extension_manual_and_completions_work_and_are_purged(root):
    root.install("gcc", "libc6-dev", "pkg-config", "libsqlite3-dev", "sqlite3", "man-db", "bash-completion")
    root.install(*(f"/packages/{name}.deb" for name in PACKAGES))
    root.run("cc -Wall -Werror -o /tmp/three /usr/share/doc/libsemel-dev/examples/three_lines.c"
             " $(pkg-config --cflags --libs semel sqlite3) && /tmp/three /tmp/three.db | grep -qx 'sold 1 tea'")
    assert root.run("echo \"SELECT load_extension('./semel'); SELECT semel_migrate() > 0;\" |"
                    " (cd /usr/lib/*/sqlite3 && sqlite3 /tmp/ext.db)").split() == ["1"]
    assert len(root.run("man -w semel libsemel").splitlines()) == 2
    root.run("bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader semel; complete -p semel'")
    root.run("apt-get -qq purge -y " + " ".join(PACKAGES))
    assert [path for path in root.files() if "semel" in path] == []
