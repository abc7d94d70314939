"""Shadows on a real server: agreement, disagreement with examples, and clients whom a shadow that fails, waits, dies or
goes concerns in nothing. The commands are those of docs/shadow.md."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shoal.cli.shadow import shadow as shadow_verb
from shoal.shadow import MAX_EXAMPLES, MAX_PAIRS
from shoal.tolerance import read_tolerance
from tests.end_to_end.asking import fetch
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import (
    Server,
    await_standby,
    descendants,
    imbalances,
    only,
    samples,
    serving_to_the_end,
    title,
    wait_until,
    worker_of,
)

PAGE = (Path(__file__).parents[2] / "docs" / "shadow.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
CONFIG = config_text(
    "python", "X FP32 4", "Y FP32 4", "version_policy { specific { versions: [ 1, 2 ] } }", rows=4, count=1
)
#: Version 1 doubles. Version 2 does so, too, but for some values.
MODEL = python_model("""
    def initialize(self, args):
        self.is_second = args["model_version"] == "2"
        self.gate = os.path.join(args["model_repository"], "gate")

    def answer(self, x):
        if self.is_second and x[0, 0] == 13:
            return x * 2 + np.float32(0.5)
        if self.is_second and x[0, 0] == 14:
            os._exit(3)
        if self.is_second and x[0, 0] == 15:
            while os.path.exists(self.gate):
                time.sleep(0.01)
        if self.is_second and x[0, 0] == 16:
            raise ValueError("a value that it cannot take")
        return x * 2

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.answer(each))]) for each in inputs]
""")
DIFFERENT, FATAL, SLOW, WRONG = 13, 14, 15, 16
#: The figures that the batcher counts; the comparator's come whenever it has had a core.
AT_BATCHER = ("mirrored", "dropped", "drops")


class Shadowed(NamedTuple):
    """A server of a model with two versions, and the file that keeps version 2 from answering SLOW."""

    server: Server
    gate: Path

    def ask(self, *values: float) -> None:
        """Ask version 1, which answers each value right."""
        for value in values:
            body = {
                "id": f"asked-{value}",
                "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}],
            }
            answered = fetch(self.server.http_port, "/v2/models/digits/versions/1/infer", body)
            assert answered.status == 200, answered.body
            assert answered.json["outputs"][0]["data"] == [2 * value] * 4

    def post(self, **said: Any) -> Any:
        return fetch(self.server.http_port, "/v2/shadow", {"model": "digits", **said})

    def found(self) -> Mapping[str, Any]:
        (found,) = fetch(self.server.http_port, "/v2/shadow?model=digits").json["shadows"]
        return dict(found)

    def ask_until(self, value: float, figure: str, least: int = 1) -> Mapping[str, Any]:
        """Ask until a figure has grown by so much: on a busy machine some requests find no idle time."""
        before = self.found()[figure]

        def has_grown() -> bool:
            self.ask(value)
            return bool(self.found()[figure] >= before + least)

        wait_until(has_grown, self.found)
        return self.found()

    def await_rest(self) -> None:
        """Return once no mirrored request waits or runs, and all memory has been given back."""
        wait_until(lambda: not imbalances(self.server.ledger()), lambda: imbalances(self.server.ledger()))

    def shoal(self, command: str, capsys: pytest.CaptureFixture[str]) -> str:
        program, verb, *words = shlex.split(command)
        assert (program, verb) == ("shoal", "shadow")
        capsys.readouterr()
        assert shadow_verb(words, environ={"SHOAL_URL": f"http://{self.server.url}"}) == 0
        return capsys.readouterr().out


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shadowed]:
    repository = tmp_path_factory.mktemp("models")
    first = add_model(repository, "digits", CONFIG, MODEL)
    (first.parent / "2").mkdir()
    (first.parent / "2" / "model.py").write_text(MODEL)
    with serving_to_the_end(repository, *only("digits"), "--poison-refusal-secs=0") as server:
        yield Shadowed(server, first.parent / "gate")


def test_the_commands_of_the_page_begin_tell_and_end(shadowed: Shadowed, capsys: pytest.CaptureFixture[str]) -> None:
    begin, tell, in_json, end = COMMANDS
    assert "0 mirrored" in shadowed.shoal(begin, capsys)
    found = shadowed.ask_until(1, "agreed", 3)
    assert found["agreed"] <= found["mirrored"], "one is compared after it was mirrored"
    told = shadowed.shoal(tell, capsys)
    assert "digits: version 2 shadows 1, 50 % of the requests" in told
    assert "computed in" in told
    (found,) = json.loads(shadowed.shoal(in_json, capsys))["shadows"]
    assert (found["share"], found["compare"], found["disagree_share"]) == (0.5, "atol=1e-5", 0.0)
    assert found["agreed"] >= 3
    assert "digits: version 2 shadows 1, ended" in shadowed.shoal(end, capsys)
    shadowed.await_rest()
    before = shadowed.found()
    shadowed.ask(*range(8))
    assert [shadowed.found()[name] for name in AT_BATCHER] == [before[name] for name in AT_BATCHER]


def test_disagreements_are_counted_with_the_worst_examples(shadowed: Shadowed) -> None:
    assert shadowed.post(version=2, of=1, compare="atol=0.1").status == 200
    found = shadowed.ask_until(DIFFERENT, "disagreed")
    assert found["failed"] == 0, found["examples"][0]["what"]
    example = found["examples"][0]
    assert example["id"] == f"asked-{DIFFERENT}"
    assert example["max_abs"] == 0.5
    assert "output Y: 4 of 4 values differ" in example["what"][0]
    assert example["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [1, 4], "values": [13.0] * 4}]
    assert (example["primary"][0]["values"], example["shadow"][0]["values"]) == ([26.0] * 4, [26.5] * 4)
    found = shadowed.ask_until(WRONG, "failed")
    assert "a value that it cannot take" in found["examples"][0]["what"][0]
    labels = '{model="digits",shadow_version="2",version="1"}'
    names = ("mirrored", "agreed", "disagreed", "failed", "dropped")

    def both() -> tuple[list[float], list[float]]:
        """As told, and as measured: equal once the last mirrored request has been compared."""
        found, figures = shadowed.found(), samples(shadowed.server.metrics_port)
        return [found[name] for name in names], [figures[f"shoal_shadow_{name}_total{labels}"] for name in names]

    wait_until(lambda: len(set(map(tuple, both()))) == 1, both)
    figures = samples(shadowed.server.metrics_port)
    assert figures[f"shoal_shadow_compute_seconds_total{labels}"] > 0
    assert shadowed.post(version=2, of=1, compare="atol=1").status == 200
    shadowed.ask_until(DIFFERENT, "agreed")


def test_a_shadow_that_dies_fails_no_request(shadowed: Shadowed) -> None:
    shadowed.post(version=2, of=1)
    found = shadowed.ask_until(FATAL, "failed")
    assert "died" in found["examples"][0]["what"][0] or found["failed"] > 1
    shadowed.ask(1, 2, 3)
    shadowed.ask_until(1, "agreed")  # by another instance


def test_a_shadow_that_is_slow_delays_no_request_and_drops_are_counted(shadowed: Shadowed) -> None:
    shadowed.post(version=2, of=1)
    shadowed.gate.touch()
    try:
        shadowed.ask_until(SLOW, "mirrored")
        shadowed.ask_until(1, "dropped")
        assert shadowed.found()["drops"].keys() & {"busy", "full"}
        (batcher,) = [pid for pid in await_standby(shadowed.server) if title(pid) == "shoal batcher"]
        os.kill(batcher, signal.SIGKILL)  # while a block is lent
        shadowed.ask(1, 2, 3)
    finally:
        shadowed.gate.unlink()
    shadowed.ask_until(1, "agreed")


def test_a_comparator_that_dies_has_a_successor(shadowed: Shadowed) -> None:
    (comparator,) = [pid for pid in descendants(shadowed.server.process.pid) if title(pid) == "shoal comparator"]
    os.kill(comparator, signal.SIGKILL)
    shadowed.ask_until(1, "agreed", 3)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"version": 3, "of": 1}, "version 3 of model 'digits' is not served, and both versions must be."),
        ({"version": 1, "of": 1}, "version 1 of model 'digits' cannot shadow itself"),
        ({"version": 2, "of": 1, "compare": "near"}, "a tolerance is as atol=1e-5,rtol=1e-3"),
        ({"version": 2, "of": 1, "share": 2}, "a number from 0 to 1"),
        ({"version": "2", "of": 1}, "'version' must be the number of a version"),
        ({"of": 7, "stop": True}, "version 7 of model 'digits' has no shadow"),
        ({"version": 2}, "'of' must be the number of a version"),
        ({"version": 2, "of": 1, "more": 1}, "a shadow is as"),
    ],
)
def test_what_cannot_be_is_refused(shadowed: Shadowed, said: dict[str, Any], sentence: str) -> None:
    before = shadowed.found()["is_on"]
    answer = shadowed.post(**said)
    assert answer.status == 400
    assert sentence in answer.json["error"]
    assert shadowed.found()["is_on"] == before


def test_a_shadow_that_is_unloaded_drops(shadowed: Shadowed) -> None:
    config = {
        "name": "digits", "backend": "python", "max_batch_size": 4, "version_policy": {"specific": {"versions": [1]}},
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }  # fmt: skip
    shadowed.post(version=2, of=1)
    body = {"parameters": {"config": json.dumps(config)}}
    assert fetch(shadowed.server.http_port, "/v2/repository/models/digits/load", body).status == 200
    found = shadowed.ask_until(1, "dropped")
    assert found["drops"]["unavailable"] >= 1
    parameters = {
        name: {"string_value": text}
        for name, text in re.findall(r'parameters \{ key: "(\w+)" value \{ string_value: "([^"]+)" \} \}', PAGE)
    }
    assert len(parameters) == 4
    config |= {"parameters": parameters, "version_policy": {"specific": {"versions": [1, 2]}}}
    assert shadowed.post(of=1, stop=True).status == 200
    body = {"parameters": {"config": json.dumps(config)}}
    assert fetch(shadowed.server.http_port, "/v2/repository/models/digits/load", body).status == 200
    assert shadowed.found()["is_on"], "the end of a shadow that was begun by request does not concern a configured one"
    assert shadowed.post(of=1, stop=True).status == 200
    assert fetch(shadowed.server.http_port, "/v2/repository/models/digits/load", body).status == 200
    assert not shadowed.found()["is_on"], "a configured one that a client has ended stays so"


def test_at_rest_nothing_is_kept(shadowed: Shadowed) -> None:
    shadowed.post(of=1, stop=True)
    shadowed.await_rest()
    assert worker_of(shadowed.server, "digits_0_0")


def test_the_bounds_are_those_of_the_code() -> None:
    from shoal.batcher.mirror import CLIENT_PARTS, MAX_NBYTES, Drop
    from shoal.batcher.scheduling.shadow_queue import MAX_WAITING, PATIENCE_NS

    assert "at most 16 versions" in PAGE
    assert MAX_PAIRS == 16
    assert "eight at most" in PAGE
    assert MAX_EXAMPLES == 8
    assert "At most 16 requests of a version wait, each for 0.2 s." in PAGE
    assert (MAX_WAITING, PATIENCE_NS) == (16, 200_000_000)
    assert "have at most 8 MiB" in PAGE
    assert "an eighth of a front end's memory" in PAGE
    assert (MAX_NBYTES, CLIENT_PARTS) == (8 << 20, 8)
    rows = [each for each in re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE) if each != "drops"]
    assert rows[-len(Drop) :] == [each.value for each in Drop]
    for text in rows[: -len(Drop)]:
        read_tolerance(text)
