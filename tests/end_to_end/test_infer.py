"""`shoal infer`, `top` and `doctor` beside a running server: by each way in, and with every mistake explained."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.top import top
from tests.end_to_end.server import SAMPLES, Server

SUMS = "OUTPUT0  FP32 [4]\n  [2. 2. 2. 2.]\nOUTPUT1  FP32 [4]\n  [0. 0. 0. 0.]\n"


def infer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    code = main(["infer", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_answer_is_printed_for_a_person(capsys: pytest.CaptureFixture[str], place: str) -> None:
    assert infer(capsys, "add_sub", "--sample", "ones", "--url", place) == (0, SUMS, "")


def test_the_answer_is_printed_for_a_program(capsys: pytest.CaptureFixture[str], place: str) -> None:
    request = str(SAMPLES / "digits" / "request.json")
    code, printed, _ = infer(capsys, "digits", "--data", request, "--output", "label", "--json", "--url", place)
    assert code == 0
    answer = json.loads(printed)
    assert answer["outputs"] == [{"name": "label", "datatype": "INT64", "shape": [1, 1], "data": [2]}]
    assert (answer["model_name"], answer["model_version"]) == ("digits", "1")


def test_texts_and_repetitions(capsys: pytest.CaptureFixture[str], place: str) -> None:
    asked = "text_classification", "text=school of fish", "--output=label", "--repeat=2", f"--url={place}"
    code, printed, times = infer(capsys, *asked)
    assert (code, printed) == (0, "label  BYTES [1, 1]\n  [['music']]\n" * 2)
    assert times.startswith("2 times: fastest ")


def test_a_stream_is_printed_as_it_comes(samples: Server, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "repeat", "IN=[4,2]", "DELAY=[0,0]", "WAIT=0", "--output", "OUT", "--json"
    for place in (samples.client_socket, f"grpc://127.0.0.1:{samples.grpc_port}"):
        code, printed, _ = infer(capsys, *asked, "--url", place)
        assert code == 0
        assert [json.loads(line)["outputs"][0]["data"] for line in printed.splitlines()] == [[4], [2]]
    code, printed, complaint = infer(capsys, *asked, "--url", samples.url)
    refusal = (
        "Unsupported: HTTP has no stream of tensors: ask model 'repeat' at a grpc:// URL, or at the server's socket"
    )
    assert (code, json.loads(printed), complaint) == (2, {"error": refusal}, f"{refusal}\n")


def test_sequences(samples: Server, capsys: pytest.CaptureFixture[str], place: str) -> None:
    said = "--parameter=sequence_id=7", "--parameter=sequence_start=true", "--parameter=sequence_end=true"
    code, printed, _ = infer(capsys, "simple_sequence", "INPUT=[[3]]", *said, "--url", place)
    assert (code, printed) == (0, "OUTPUT  INT32 [1, 1]\n  [[4]]\n")


def test_what_the_server_refuses(capsys: pytest.CaptureFixture[str], place: str) -> None:
    code, printed, complaint = infer(capsys, "whale", "x=1", "--url", place)
    assert (code, printed) == (2, "")
    assert complaint.startswith("Not found: Request for unknown model: 'whale' is not found")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Which model? 'shoal models' lists those of a server."),
        (["add_sub"], "missing input 'INPUT0' (FP32, shape [4]); missing input 'INPUT1' (FP32, shape [4])."),
        (["add_sub", "X=1"], "'X' is no input of model 'add_sub', which takes 'INPUT0' (FP32, shape [4]), 'INPUT1'"),
        (["add_sub", "INPUT0=[1,2]", "--sample=ones"], "Input 'INPUT0' (FP32, shape [4]) is given in shape [2]."),
        (["add_sub", "INPUT0"], "expected <name>=<value>, got 'INPUT0'"),
        (["add_sub", "--timeout=never"], "expected seconds, up to a day, got 'never'"),
        (["add_sub", "--nonsense"], "--nonsense"),
    ],
    ids=["no model", "no input", "unknown input", "shape", "no value", "timeout", "flag"],
)
def test_mistakes(samples: Server, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    code, printed, complaint = infer(capsys, *arguments, "--url", samples.client_socket)
    assert (code, printed) == (1, "")
    assert sentence in complaint
    assert complaint.endswith("'shoal infer --help' explains it.\n")


def test_no_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for place in ("127.0.0.1:1", "grpc://127.0.0.1:1", str(tmp_path / "sock")):
        code, printed, complaint = infer(capsys, "simple", "--sample=ones", "--url", place)
        assert (code, printed) == (3, ""), place
        assert "shoal serve --model-repository" in complaint


def test_a_stopped_server_is_late(capsys: pytest.CaptureFixture[str], samples: Server) -> None:
    """The kernel takes connections for a stopped server, which lets no client join."""
    with stopped(samples.process.pid):
        code, printed, complaint = infer(
            capsys, "simple", "--sample=ones", "--timeout=0.2", f"--url={samples.client_socket}"
        )
    assert (code, printed) == (3, "")
    assert f"the server at {samples.client_socket} has not let this client join within 0.2 s" in complaint
    assert "kill -CONT" in complaint


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process while this context is open."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_help_needs_neither_a_server_nor_numpy() -> None:
    script = (
        "import sys; from shoal.cli import main\n"
        "try: main(['infer', '--help'])\n"
        "except SystemExit as end:"
        " print(end.code, sorted({'numpy', 'google', 'flask', 'shoal.supervisor'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("Usage: shoal infer <model>")
    assert done.stdout.endswith("0 []\n")


def test_the_doctor_knows_a_server_at_its_port(samples: Server, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", f"--http-port={samples.http_port}", "--json"])
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["subject"] == "http port"]
    assert (row["state"], row["found"]) == ("ok", f"{samples.http_port}: a server answers there (shoal models)")


def test_top_counts_what_is_asked(samples: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(_seconds: float) -> None:
        assert main(["infer", "add_sub", "--sample=ones", "--url", samples.client_socket]) == 0
        capsys.readouterr()

    assert top(["--count=1", "--json", f"--url={samples.url}"], environ={}, sleep=ask) == 0
    (figures,) = [row for row in json.loads(capsys.readouterr().out) if row["model"] == "add_sub"]
    assert figures["requests_per_s"] > 0
    assert figures["compute_ms"] > 0
