"""--json: all that stdout gets is JSON, of each verb that has something to read, also where the command fails."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.api_keys import KeyRing, parse_keys
from shoal.cli import _VERBS, main
from shoal.cli.upgrade import _follow
from shoal.cli.verb import FailedError
from shoal.messages.message import Message
from shoal.messages.upgrade import UpgradeBegun, UpgradeEnded
from tests.cli.answering import Answering
from tests.end_to_end.command_line import SHOAL, run_here
from tests.end_to_end.server import SAMPLES
from tests.repository.torchserve.archives import mar
from tests.testing.models import write_identity, write_python

#: Verbs without --json, and why (docs/command_line.md).
WITHOUT = {"serve", "completion"}


def told(directory: Path, *arguments: object, code: int = 0) -> Any:
    """The document that the command prints, in this directory."""
    done = run_here(*arguments, "--json", folder=directory)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", sorted(_VERBS.keys() - WITHOUT))
def test_an_error_is_an_object_of_json_on_stdout_and_a_sentence_on_stderr(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--json", "--nonsense"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"{json.loads(printed.out)['error']}\nUsage: shoal {verb}")
    try:
        main([verb, "--help"])
    except SystemExit as end:
        assert end.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--js", "--json"])
def test_a_shortened_flag_is_as_good(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", flag, "--nonsense"]) == 1
    assert json.loads(capsys.readouterr().out).keys() == {"error"}


@pytest.mark.parametrize("verb", sorted(WITHOUT))
def test_a_verb_that_has_nothing_to_tell_a_program_refuses_the_flag(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--json"]) == 1
    assert capsys.readouterr().err.startswith("unrecognized option '--json'")


def test_what_init_writes(tmp_path: Path) -> None:
    files = ["new/1/model.py", "new/config.pbtxt", "new/request.json"]
    assert told(tmp_path, "init", "new") == {"model": "new", "wrote": files}
    assert told(tmp_path, "init", "new", code=1) == {"error": "'new' exists already, and is left as it is."}
    (tmp_path / "broken.onnx").write_text("no model")
    assert told(tmp_path, "init", "broken", "--from", "broken.onnx", code=2).keys() == {"error"}


def test_what_samples_writes(tmp_path: Path) -> None:
    models = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
    assert told(tmp_path, "samples", "models") == {"models": models, "wrote": ["models"]}


def test_what_pack_and_import_write(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text("")
    packed = told(tmp_path, "pack", "--model-name=m", "--version=1.5", "--handler=h.py")
    assert packed == {"model": "m", "version": "1.5", "wrote": ["m.mar"]}
    store = tmp_path / "store"
    store.mkdir()
    mar(store / "a.mar", {"c.yaml": "minWorkers: 2\nmaxWorkers: 2\nbatchSize: 4"}, configFile="c.yaml")
    (store / "z.mar").write_bytes(b"PK")
    (tmp_path / "config.properties").write_text("model_store=store\nvmargs=-Xmx1g\n")
    found = told(tmp_path, "import", "config.properties", "--output=models", code=2)
    served, refused = found["models"]
    assert served == {
        "name": "echo", "version": "1.0", "handler": "echo.py", "workers": 2, "batch_size": 4, "max_queue_size": 100,
        "response_timeout_s": 120,
    }  # fmt: skip
    assert (refused.keys(), refused["name"]) == ({"name", "error"}, "z")
    notes = ["model_store is honoured", "vmargs is ignored: there is no Java virtual machine"]
    assert (found["notes"], found["wrote"]) == (notes, ["models"])


def test_a_key_and_its_entry(tmp_path: Path) -> None:
    made = told(tmp_path, "key", "shop", "--rate=2")
    assert (made["name"], made["wrote"]) == ("shop", [])
    found = KeyRing(parse_keys(json.dumps({"shop": made["entry"]}).encode())).find(made["key"])
    assert found is not None
    assert found.limits.requests_per_second == 2
    kept = told(tmp_path, "key", "shop", "--file=keys.json")
    assert kept["wrote"] == ["keys.json"]
    assert json.loads((tmp_path / "keys.json").read_bytes()) == {"shop": kept["entry"]}
    sentence = "'keys.json' is not changed: it has a key 'shop' already"
    assert told(tmp_path, "key", "shop", "--file=keys.json", code=2) == {"error": sentence}


def test_the_servers_and_the_text_of_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(tmp_path, "fleet", "haproxy", "--server=a", "--server=b:1:2")
    assert found["balancer"] == "haproxy"
    assert found["servers"][1] == {"name": "b-1", "host": "b", "http_port": 1, "grpc_port": 2}
    assert main(["fleet", "haproxy", "--server=a", "--server=b:1:2"]) == 0
    assert found["configuration"] == capsys.readouterr().out


def test_the_units_and_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["install-systemd", "--model-repository", str(tmp_path), "--user=daemon", "--socket"]
    shown = told(tmp_path, *flags, "--output=-")
    unit, socket = "/etc/systemd/system/shoal.service", "/etc/systemd/system/shoal.socket"
    assert (list(shown["units"]), shown["wrote"]) == ([unit, socket], [])
    assert "\nService=shoal.service\n" in shown["units"][socket]
    written = told(tmp_path, *flags, "--output=fish.service")
    assert written["wrote"] == [f"{tmp_path}/fish.service", f"{tmp_path}/fish.socket"]
    assert written["next"] == ["systemctl daemon-reload", "systemctl enable --now fish.socket fish.service"]
    assert {path: Path(path).read_text() for path in written["wrote"]} == written["units"]
    assert main([*flags, "--output=-"]) == 0
    assert capsys.readouterr().out == "\n".join(shown["units"].values())


def test_an_engine_that_cannot_be_built(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    assert "engines cannot be built here" in told(tmp_path, "build-engine", "m.onnx", "m.plan", code=1)["error"]


def test_the_configuration_of_ray(tmp_path: Path) -> None:
    found = told(tmp_path, "ray", "deploy", "/models", "--yaml")
    assert found["configuration"].startswith("# Written by `shoal ray deploy --yaml`")


def test_an_upgrade_is_told_event_by_event(capsys: pytest.CaptureFixture[str]) -> None:
    begun, ended = UpgradeBegun(42, 600.0), UpgradeEnded(42, "1.2.3", "")

    def until_the_end() -> Iterator[Message]:
        yield begun
        yield ended
        raise EOFError

    assert _follow(7, until_the_end(), as_json=True) == 0
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [
        {"event": "started", "pid": 42, "limit_s": 600.0},
        {"event": "serves", "pid": 42, "version": "1.2.3"},
        {"event": "ended", "pid": 7},
    ]
    with pytest.raises(FailedError, match=r"No upgrade: it is too old\.") as refused:
        _follow(7, iter([UpgradeEnded(0, "", "it is too old")]), as_json=True)
    assert (refused.value.code, refused.value.advice) == (2, ("Process 7 goes on as before.",))


def test_an_upgrade_of_nothing(tmp_path: Path) -> None:
    found = told(tmp_path, "upgrade", "--pid=1", code=1)
    assert found == {"error": "process 1 is no Shoal server of this version or later"}


def test_what_a_server_refuses_and_what_does_not_answer(server: Answering, tmp_path: Path) -> None:
    sentence = "explicit model load / unload is not allowed if polling is enabled"
    server.answer("POST /v2/repository/models/m/load", {"error": sentence}, 503)
    assert told(tmp_path, "load", "m", "--url", server.url, code=2) == {"error": sentence}
    server.answer("POST /v2/repository/index", b"<html>")
    found = told(tmp_path, "models", "--url", server.url, code=3)
    assert found == {"error": f"What answers at {server.url} is not a model server."}
    assert "error" in told(tmp_path, "infer", "m", "--url", server.url, code=2)


def test_a_model_that_fails(tmp_path: Path) -> None:
    write_identity(tmp_path)
    (tmp_path / "echo" / "config.pbtxt").write_text('backend: "none"')
    assert "none" in told(tmp_path, "run", "echo", "--sample=ones", code=2)["error"]


def test_what_a_model_prints_is_no_part_of_its_answer(tmp_path: Path) -> None:
    code = """
    def initialize(self, args):
        print("it is loaded")

    def execute(self, requests):
        print("it is asked")
        return [answer(2 * x_of(request).as_numpy()) for request in requests]

    def finalize(self):
        print("it ends")
"""
    write_python(tmp_path, "chatty", code)
    command = [*SHOAL, "run", "chatty", "--sample=ones", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["outputs"][0]["data"] == [2, 2]


def test_lines_of_a_log_that_come(server: Answering, tmp_path: Path) -> None:
    """One object for the last lines, and one for each that comes."""
    (tmp_path / "log").write_text("one\ntwo\n")
    server.answer("GET /v2/logging", {"log_file": f"{tmp_path}/log"})
    script = f"""
from shoal.cli.logs import logs

def sleep(_seconds):
    if open("{tmp_path}/log").read().endswith("two\\n"):
        open("{tmp_path}/log", "a").write("three\\n")
    else:
        raise KeyboardInterrupt

raise SystemExit(logs(["--url={server.url}", "--follow", "--json"], environ={{}}, sleep=sleep))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [{"log_file": f"{tmp_path}/log", "lines": each} for each in (["one", "two"], ["three"])]
