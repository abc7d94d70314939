"""Models in environments of their own, in a real server; packages are wheels made here, none comes from a network."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import Server, serving, serving_to_the_end
from tests.environments.places import make_venv, numpy_wheel, pack, site_packages, write_wheel

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorials" / "python_packages.md").read_text()

#: Says which version of the package it sees, and where it runs; and that it does not see the server's packages.
MODEL = """
import importlib.util
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        import breakfast

        seen = [name for name in ("setproctitle", "orjson", "flask") if importlib.util.find_spec(name)]
        facts = [breakfast.WHAT, sys.prefix, os.environ.get("VIRTUAL_ENV", ""), ",".join(seen)]
        output = pb_utils.Tensor("FACTS", np.array(facts, dtype=object))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "FACTS" data_type: TYPE_STRING dims: [ 4 ] } ]
instance_group { count: 1 kind: KIND_CPU }
"""
X = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]}
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index: two versions of one package, and numpy."""
    directory = tmp_path_factory.mktemp("wheels")
    write_wheel(directory, "breakfast", "1.0", "WHAT = 'spam'\n")
    write_wheel(directory, "breakfast", "2.0", "WHAT = 'eggs'\n")
    numpy_wheel(directory)
    return directory


def write_model(repository: Path, name: str, more: str = "", backend: str = "python") -> Path:
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    if backend == "python":
        (directory / "1" / "model.py").write_text(MODEL)
    (directory / "config.pbtxt").write_text(f'backend: "{backend}"\n{TENSORS}{more}')
    return directory


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def ask(server: Server, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and content. To make an environment takes long on a busy machine."""
    reply = fetch(server.http_port, f"/v2/{path}", body, deadline_s=DEADLINE_S)
    return reply.status, reply.json if reply.body else {}


def load_error(server: Server, model: str) -> str:
    """What becomes of a load: "" where it succeeds."""
    _, answer = ask(server, f"repository/models/{model}/load", {})
    found: str = answer.get("error", "")
    return found


def facts(server: Server, model: str) -> list[str]:
    assert load_error(server, model) == ""
    status, answer = ask(server, f"models/{model}/infer", X)
    assert status == 200, answer
    found: list[str] = answer["outputs"][0]["data"]
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Path:
    """Models with requirements, with an archive, with a directory, of a backend in Python; and some that cannot be."""
    base = tmp_path_factory.mktemp("base")
    repository, backend = base / "repository", base / "backends" / "waiter"
    # numpy, which the server adds to the first, is named where nothing is said of it: it takes pip another run.
    for name, wanted in [("first", "1.0"), ("second", "2.0\nnumpy"), ("impossible", "3.0")]:
        directory = write_model(repository, name)
        (directory / "requirements.txt").write_text(f"--no-index\n--find-links {wheels}\nbreakfast=={wanted}\n")
    venv = make_venv(base / "venv", copies=True)
    (site_packages(venv) / "breakfast.py").write_text("WHAT = 'toast'\n")
    packed = write_model(repository, "packed", parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/e.tar.gz"))
    pack(venv, packed / "e.tar.gz")
    write_model(repository, "unpacked", parameter("EXECUTION_ENV_PATH", str(venv)))
    write_model(repository, "pointed", parameter("PYTHON_INTERPRETER", f"{venv}/bin/python"))
    write_model(repository, "nowhere", parameter("EXECUTION_ENV_PATH", "/no/such/environment"))
    damaged = write_model(repository, "damaged", parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/e.tar.gz"))
    (damaged / "e.tar.gz").write_bytes((packed / "e.tar.gz").read_bytes()[:-1000])
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(MODEL)
    shutil.copyfile(packed / "e.tar.gz", backend / "pb_exec_env_model.py.tar.gz")
    write_model(repository, "served", backend="waiter")
    return repository


def flags(repository: Path, cache: Path) -> tuple[str, ...]:
    backends = f"--backend-directory={repository.parent}/backends"
    return "--model-control-mode=explicit", backends, f"--environment-cache-directory={cache}"


@pytest.fixture(scope="module")
def server(repository: Path, cache: Path) -> Iterator[Server]:
    with serving_to_the_end(repository, *flags(repository, cache)) as running:
        yield running


def assert_every_line_names_its_model(log: list[str], model: str, repository: Path) -> None:
    """Of an installation, from its first line to the worker that runs in what it made."""
    begun = log.index(f"model '{model}': installing '{repository}/{model}/requirements.txt'")
    ended = next(number for number, line in enumerate(log) if " runs in the environment " in line)
    printed = [line for line in log[begun:ended] if not re.match(r"[IWE]\d{4} ", line)]
    assert len(printed) > 2
    assert [line for line in printed if not line.startswith(f"model '{model}': ")] == []


def test_two_versions_of_a_package_are_served_side_by_side(server: Server, repository: Path, cache: Path) -> None:
    start = len(server.log)
    first = facts(server, "first")
    assert server.read_log(b"worker first_0_0 runs in the environment", start=start)
    assert_every_line_names_its_model(server.log[start:].decode().splitlines(), "first", repository)
    second = facts(server, "second")
    assert (first[0], second[0]) == ("spam", "eggs")
    assert first[1] != second[1]
    for found in (first, second):
        assert Path(found[1]).is_relative_to(cache)
        assert found[2:] == [found[1], ""]


def test_an_archive_a_directory_and_an_interpreter(server: Server, cache: Path) -> None:
    packed, unpacked, pointed = (facts(server, model) for model in ("packed", "unpacked", "pointed"))
    assert packed[0] == unpacked[0] == pointed[0] == "toast"
    assert Path(packed[1]).is_relative_to(cache)
    assert unpacked == pointed
    assert packed[3] == unpacked[3] == ""


def test_a_backend_written_in_python_brings_its_environment(server: Server, cache: Path) -> None:
    what, prefix, *_ = facts(server, "served")
    assert what == "toast"
    assert Path(prefix).is_relative_to(cache)


def test_what_cannot_be_made_fails_its_model_in_words(server: Server) -> None:
    assert load_error(server, "nowhere").endswith("EXECUTION_ENV_PATH '/no/such/environment' does not exist;\n")
    assert "e.tar.gz' cannot be unpacked: " in load_error(server, "damaged")
    error = load_error(server, "impossible")
    assert "requirements.txt' cannot be made: " in error
    assert "No matching distribution found for breakfast==3.0" in error
    assert server.read_log(b"No matching distribution found for breakfast==3.0\n")  # progress, as pip says it


def test_a_wheel_that_changes_is_installed_with_the_next_load(server: Server, repository: Path, wheels: Path) -> None:
    directory = write_model(repository, "local")
    (directory / "requirements.txt").write_text("-r base.txt\n")
    (directory / "base.txt").write_text(f"--no-index\n--find-links {wheels}\n./breakfast-4.0-py3-none-any.whl\nnumpy\n")
    for what in ("porridge", "pancakes"):
        write_wheel(directory, "breakfast", "4.0", f"WHAT = '{what}'\n")
        assert facts(server, "local")[0] == what


def test_a_second_server_finds_what_the_first_has_made(server: Server, repository: Path, cache: Path) -> None:
    made = facts(server, "first")[:2]
    with serving(repository, *flags(repository, cache)) as second:
        assert facts(second, "first")[:2] == made
        assert second.stop() == 0
        assert b"installing" not in second.log


def test_nothing_is_installed_where_that_is_not_wanted(repository: Path, cache: Path) -> None:
    with serving(repository, *flags(repository, cache), "--install-requirements=false") as running:
        assert load_error(running, "first") == ""
        status, answer = ask(running, "models/first/infer", X)
        assert status == 500
        assert "No module named 'breakfast'" in answer["error"]


def test_the_example_prints_what_the_page_shows(wheels: Path, cache: Path, tmp_path: Path) -> None:
    """With the numpy that is here in place of the one from the index."""
    page = TUTORIAL.replace("2.2.6", np.__version__)
    prepare, start, ask_it = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[:3]
    [output] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    subprocess.run(["sh", "-ec", prepare], cwd=tmp_path, check=True)
    words = shlex.split(start)
    assert words == ["shoal", "serve", "--model-repository", "models"]
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "XDG_CACHE_HOME": str(cache)}
    with serving_to_the_end(tmp_path / words[-1], environment=index) as running:
        command = ask_it.replace("localhost:8000", running.url)
        printed = subprocess.run(["sh", "-ec", command], check=True, capture_output=True, text=True, timeout=DEADLINE_S)
        assert json.loads(printed.stdout) == json.loads(output)
        assert (cache / "shoal" / "environments").is_dir()
