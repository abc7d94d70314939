"""`shoal bench` beside a running server: by each way in, with errors, a goal, and two servers in turns."""

import json
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from shoal.cli import main
from shoal.cli.bench.memory_transport import MemoryTransport
from tests.end_to_end.server import SAMPLES, Server

QUICK = "--warm-up=0", "--window=0.05", "--windows=2", "--requests=5", "--concurrency=2"


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    code = main(["bench", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_every_request_is_answered_and_counted_by_the_server(
    capsys: pytest.CaptureFixture[str], place: str, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.svg"
    code, printed, _ = bench(capsys, "simple", "--batch-size=4", "--json", f"--svg={picture}", "--url", place, *QUICK)
    assert code == 0
    found = json.loads(printed)
    (level,) = found["levels"]
    assert (found["rows_per_request"], level["errors"], level["concurrency"]) == (4, {}, 2)
    assert level["requests"] > 0
    assert level["server"]["rows_per_batch"] >= 4
    assert level["p50_ms"] <= level["p99_ms"] <= level["max_ms"]
    assert picture.read_text().startswith("<svg")


def test_figures_and_the_error_of_a_picture_that_cannot_be_written_are_a_line_each(
    capsys: pytest.CaptureFixture[str], samples: Server
) -> None:
    arguments = "simple", "--svg=/dev/full", "--url", samples.url, *QUICK
    code, printed, _ = bench(capsys, *arguments, "--json")
    figures, error = map(json.loads, printed.splitlines())
    assert (code, figures["model"]) == (1, "simple")
    assert error == {"error": "'/dev/full' cannot be written: No space left on device"}
    code, printed, complaint = bench(capsys, *arguments)
    assert (code, printed.splitlines()[0]) == (1, f"Model 'simple' at http://{samples.url}")
    assert complaint.startswith(f"{error['error']}\n")


def test_errors_are_told_by_their_sentence(capsys: pytest.CaptureFixture[str], place: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    rows = {
        "data": [
            {"INPUT0": {"content": [1] * 144, "shape": [9, 16]}, "INPUT1": {"content": [1] * 144, "shape": [9, 16]}}
        ]
    }
    wrong.write_text(json.dumps(rows))
    code, printed, _ = bench(capsys, "simple", f"--input-data={wrong}", "--json", "--url", place, *QUICK)
    assert code == 2
    (level,) = json.loads(printed)["levels"]
    assert level["requests"] == 0
    (sentence,) = level["errors"]
    assert "inference request batch-size must be <= 8" in sentence


def test_a_request_that_was_answered_while_another_one_was_given_up_is_not_counted_for_the_next(
    samples: Server,
) -> None:
    inputs = {name: np.ones((1, 16), np.int32) for name in ("INPUT0", "INPUT1")}
    with closing(MemoryTransport(samples.client_socket, "simple", "", [inputs])) as transport:
        transport.send(0)
        while not transport._answered:  # the first, which no wait has yielded yet
            transport.send(1)
            transport.abandon(1)
        transport.abandon(0)
        transport.send(0)
        sent_ns = time.perf_counter_ns()
        found = [(slot, error, transport.arrived_ns > sent_ns) for slot, error in transport.wait(10)]
        assert found == [(0, None, True)]


def test_an_open_loop_and_its_goal(capsys: pytest.CaptureFixture[str], place: str) -> None:
    flags = "--rate=200", "--warm-up=0", "--window=0.2", "--windows=1", "--url", place
    code, printed, _ = bench(capsys, "digits", *flags, "--goal=p99=60s")
    assert code == 0, printed
    assert "Goal p99=60s: met with" in printed
    code, printed, _ = bench(capsys, "digits", *flags, "--arrivals=constant", "--goal=p50=0.001us")
    assert code == 4
    assert printed.endswith("Goal p50=0.001us: missed.\n")


def test_two_servers_in_turns(capsys: pytest.CaptureFixture[str], samples: Server) -> None:
    urls = "--url", samples.url, "--compare", f"grpc://127.0.0.1:{samples.grpc_port}"
    code, printed, _ = bench(capsys, "simple", *urls, *QUICK)
    assert code == 0, printed
    assert [line.split()[0] for line in printed.splitlines()[4:7]] == ["A", "B", "B/A"]
    code, printed, _ = bench(capsys, "simple", *urls, *QUICK, "--json")
    (shares,) = json.loads(printed)["ratios"]
    assert all(share > 0 for share in shares.values())


def test_two_models_of_a_server_in_turns(capsys: pytest.CaptureFixture[str], samples: Server) -> None:
    code, printed, _ = bench(capsys, "simple", "--compare-model=simple:1", "--url", samples.url, *QUICK)
    assert code == 0, printed
    assert printed.splitlines()[:2] == [f"A: simple at http://{samples.url}", f"B: simple:1 at http://{samples.url}"]
    other = "--compare-model=simple_int8", "--url", samples.url
    code, printed, _ = bench(capsys, "simple", *other, *QUICK, "--json")
    assert code == 2, "the inputs differ: its requests are refused"
    document = json.loads(printed)
    assert (document["model"], document["compared"]["model"]) == ("simple", "simple_int8")
    (sentence,) = document["compared"]["levels"][0]["errors"]
    assert "data-type is 'INT32', but model 'simple_int8' expects 'INT8'" in sentence


def test_requests_of_perf_analyzers_files_are_sent_in_turns(
    capsys: pytest.CaptureFixture[str], samples: Server, tmp_path: Path
) -> None:
    given = tmp_path / "data.json"
    steps = [
        {"text": ["school of fish"]},
        {"text": {"content": ["will it rain"], "shape": [1]}},
        {"text": {"b64": "aGk="}},
    ]
    given.write_text(json.dumps({"data": [steps[:2], steps[2]]}))
    code, printed, _ = bench(capsys, "text_classification", "--input-data", str(given), "--url", samples.url, *QUICK)
    assert code == 0, printed


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 1, "Which model? 'shoal models' lists those of a server."),
        (["whale"], 2, "Request for unknown model: 'whale' is not found"),
        (["repeat"], 1, "Model 'repeat' streams (decoupled)"),
        (["digits", "--shape=image:3"], 1, "Input 'image' (FP32, shape [-1,64]) cannot have the shape [3] of --shape."),
        (["digits", "--shape=pixels:64"], 1, "'pixels' is no input of model 'digits'"),
        (["digits", "--protocol=grpc"], 1, "--protocol grpc does not fit --url"),
        (["digits", "--batch-size=99999999999999"], 1, "A request of this --shape and --batch-size does not fit into"),
        (
            ["digits", f"--batch-size={10**30}"],
            1,
            "A request of this --shape and --batch-size does not fit into memory",
        ),
        (["digits", "--compare=127.0.0.1:1"], 3, "No server answers at 127.0.0.1:1: Connection refused.\n"),
        (["digits", "--concurrency=1", "--rate=1"], 1, "not allowed with argument"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_mistakes(
    samples: Server, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    found, printed, complaint = bench(capsys, *arguments, "--url", samples.url)
    assert found == code, printed
    assert sentence in complaint


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "/nowhere/socket"])
def test_no_server(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, _, complaint = bench(capsys, "digits", "--url", url)
    assert code == 3
    assert "shoal serve --model-repository" in complaint


def test_shapes_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str], samples: Server) -> None:
    config = (SAMPLES / "simple_identity" / "config.pbtxt").read_text()
    assert "-1" in config  # a size that the model leaves open
    name = config.split("input [")[1].split('name: "')[1].split('"')[0]
    code, printed, _ = bench(capsys, "simple_identity", f"--shape={name}:5", "--json", "--url", samples.url, *QUICK)
    assert code == 0, printed
    assert Counter(json.loads(printed)["levels"][0]["errors"]) == {}
