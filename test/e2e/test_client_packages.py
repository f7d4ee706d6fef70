# SPDX-License-Identifier: MIT
"""The packages of clients/ as a user gets them: a wheel, an sdist and a tarball of npm are built, installed in a clean
environment without any registry, and then used on a real server."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from inbox_cases import APPS, NODE_PATHS, SOURCE
from pgsql import Shop, pg_server  # noqa: F401  (a fixture)

BODY = json.dumps({"cents": 5, "outcome": {"receipt": 7}, "event": {"paid": 5}})


def run(words, folder, **env):
    """What it printed. Whatever the machine has set up for pip is none of its business."""
    done = subprocess.run([*map(str, words)], cwd=folder, capture_output=True, text=True, check=False, timeout=600,
                          env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                               "PIP_CONFIG_FILE": os.devnull, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def books_balance(words, folder, server, name, **env):
    """Runs a consumer on the installed package: a message, its copy, a poisoned one, and what is stored for later."""
    shop = Shop(server, name)
    asked = [{"op": "deliver", "messages": [{"id": "m1", "body": BODY}]}] * 2 + [
        {"op": "deliver", "messages": [{"id": "m2", "body": "no JSON"}]},
        {"op": "put", "message": {"id": "m3", "body": '{"cents": 3}'}}, {"op": "work_once"}]
    done = subprocess.run([*map(str, words)], cwd=folder, capture_output=True, text=True, check=False, timeout=120,
                          input="".join(json.dumps({"consumer": "billing", **one}) + "\n" for one in asked),
                          env={**os.environ, "DATABASE_URLS": json.dumps({"default": shop.url}), **env})
    said = [json.loads(line).get("is") for line in done.stdout.splitlines()]
    assert len(said) == len(asked) and None not in said, done.stdout + done.stderr
    assert [(one[0]["act"], one[0]["why"]) for one in said[:2]] == [("run", "new"), ("ack", "duplicate")]
    assert said[1][0]["outcome"] == {"receipt": 7} and said[2][0]["status"] == "dead" and said[4] == 1
    assert sorted(shop.sql("SELECT message_id, amount FROM ledger")) == [("m1", "5"), ("m3", "3")]
    assert shop.sql("SELECT aggregateid, type FROM semel.outbox") == [("m1", "paid")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist of clients/python."""
    for module, package in [("psycopg_pool", "psycopg-pool"), ("pip", "pip"), ("setuptools", "setuptools"),
                            ("wheel", "wheel"), ("venv", "venv")]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"Python has no {module} here: apt-get install python3-{package}")
    folder = tmp_path_factory.mktemp("python")
    shutil.copytree(SOURCE / "clients/python", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    for kind in ["build_wheel", "build_sdist"]:
        run([sys.executable, "-c", f"from setuptools import build_meta as b; b.{kind}({str(folder)!r})"],
            folder / "source")
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_wheel_and_sdist_hold_the_whole_package(built):
    files = {f"semel/{path.name}" for path in (SOURCE / "clients/python/semel").iterdir() if path.is_file()}
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        about = next(wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name for name in names if ".dist-info/" not in name} == files and "semel/py.typed" in files
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert files | {"pyproject.toml", "README.md", "PKG-INFO"} <= names
    assert "# semel for Python" in about and "License: MIT" in about


# I26: in an environment that has psycopg and nothing of this checkout
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_python_package_is_installed_and_used(built, kind, tmp_path, pg_server):  # noqa: F811
    run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", "env"], tmp_path)
    python = tmp_path / "env/bin/python"
    run([python, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--disable-pip-version-check",
         f"semel[psycopg] @ {built[kind].as_uri()}"], tmp_path)
    assert tmp_path / "env" in pathlib.Path(run([python, "-c", "import semel, semel.asgi; print(semel.__file__)"],
                                                tmp_path).strip()).parents
    books_balance([python, APPS / "inbox_app.py", "psycopg"], tmp_path, pg_server, kind, PYTHONPATH="")


# I26
def test_node_package_is_installed_and_used(tmp_path, pg_server):  # noqa: F811
    for program in ["node", "npm"]:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here: apt-get install nodejs npm")
    if not any((pathlib.Path(path) / "pg").is_dir() for path in NODE_PATHS):
        pytest.skip("Node has no module pg here: tools/setup languages, or npm install and NODE_PATH")
    quiet = ["--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--cache", tmp_path / "cache"]
    packed, = json.loads(run(["npm", "pack", "--json", "--pack-destination", tmp_path, *quiet, SOURCE / "clients/node"],
                             tmp_path))
    assert {one["path"] for one in packed["files"]} == {
        path.name for path in (SOURCE / "clients/node").iterdir() if path.suffix in (".js", ".ts", ".json", ".md")}
    (tmp_path / "app").mkdir()
    (tmp_path / "app/package.json").write_text("{}")
    run(["npm", "install", "--legacy-peer-deps", *quiet, tmp_path / packed["filename"]], tmp_path / "app")
    modules = tmp_path / "app/node_modules"
    assert (modules / "semel/package.json").is_file() and not (modules / "semel").is_symlink()
    found = run(["node", "-p", "['semel', 'semel/express', 'semel/fastify'].map((one) => typeof require(one))"],
                tmp_path / "app")
    assert found.count("object") == 3, found
    books_balance(["node", APPS / "inbox_app.js"], tmp_path, pg_server, "tarball",
                  NODE_PATH=":".join([str(modules), *NODE_PATHS]))
