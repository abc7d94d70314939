"""Archives with sequenceBatching and continuousBatching, served by the command, asked over HTTP and gRPC."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server import DEADLINE_S, wait_until
from tests.end_to_end.torchserve_listeners import Reply, TorchServe, torchserve_command
from tests.end_to_end.torchserve_stubs import INFERENCE, Prediction, Stub
from tests.repository.torchserve.archives import mar

ID, START, END = "ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"

#: Adds up what the requests of a sequence say; `end` ends it. As TorchServe's own example of a stateful handler.
SUMS = """
import json
import os

from ts.torch_handler.base_handler import BaseHandler


class Sums(BaseHandler):
    def initialize(self, context):
        self.context = context
        context.cache = {}

    def handle(self, data, context):
        cache, answers, ids = context.cache, [], []
        for index, row in enumerate(data):
            sequence_id = context.get_sequence_id(index)
            context.set_response_header(index, context.header_key_sequence_id, sequence_id)
            if context.get_request_header(index, context.header_key_sequence_start):
                cache[sequence_id] = 0
            body = bytes(row.get("data") or row.get("body")).decode()
            if body == "die":
                os._exit(1)
            if body == "end":
                context.set_response_header(index, context.header_key_sequence_end, sequence_id)
                answers.append({"sum": cache.pop(sequence_id, None), "pid": os.getpid()})
                continue
            cache[sequence_id] = cache.get(sequence_id, 0) + int(body)
            answers.append({"sum": cache[sequence_id], "pid": os.getpid()})
            ids.append(sequence_id)
        assert len(set(ids)) == len(ids), "two requests of one sequence in a batch"
        return answers
"""
#: Counts down from the number that a request says, one execution for each step; a request `wait PATH` waits first until
#: the FIFO has been written to.
STEPS = """
class Steps:
    def initialize(self, context):
        self.left = {}

    def handle(self, data, context):
        parts = []
        for index, row in enumerate(data):
            request_id = context.get_request_id(index)
            if "body" in row:
                word, _, path = bytes(row["body"]).decode().partition(" ")
                if path:
                    with open(path) as fifo:
                        fifo.readline()
                self.left[request_id] = int(word)
            elif row or request_id not in self.left:
                raise ValueError(f"the request comes again with {row}")
            self.left[request_id] -= 1
            context.set_response_header(index, "X-First-Batch", str(len(data)))
            parts.append(f"{self.left[request_id]}/{len(data)} ")
        context.stopping_criteria = [
            lambda part, key=context.get_request_id(index): self.is_over(key) for index in range(len(data))
        ]
        return parts

    def is_over(self, request_id):
        if self.left[request_id] < 0:
            raise ValueError("no") if self.left[request_id] == -1 else KeyboardInterrupt
        if self.left[request_id] > 0:
            return False
        del self.left[request_id]
        return True
"""
YAML = "minWorkers: {workers}\nmaxWorkers: {workers}\nbatchSize: 4\n"
SEQUENCES = YAML.format(workers=2) + (
    "sequenceBatching: true\nmaxNumSequence: 4\nmaxSequenceJobQueueSize: 10\nsequenceMaxIdleMSec: 60000\n"
)
BOTH = """
from ts.context import Context


def handle(data, context):
    if data is None:
        context.left = {}
        return
    ids = [context.get_sequence_id(index) for index in range(len(data))]
    for index, row in enumerate(data):
        if row:
            context.left[ids[index]] = context.left.get(ids[index], 0) + int(bytes(row["body"]))
        context.left[ids[index]] -= 1
    context.stopping_criteria = [lambda _, key=key: context.left[key] % 3 == 0 for key in ids]
    return [f"{context.left[key]} " for key in ids]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    store = tmp_path_factory.mktemp("store")
    continuous = YAML.format(workers=1) + "continuousBatching: true\n"
    for name, source, yaml in (
        ("sums", SUMS, SEQUENCES),
        ("steps", STEPS, continuous),
        ("both", BOTH, continuous + "sequenceBatching: true\nmaxNumSequence: 2\n"),
    ):
        files = {"h.py": source, "c.yaml": yaml}
        mar(store / f"{name}.mar", files, name=name, handler="h.py", configFile="c.yaml")
    with torchserve_command(tmp_path_factory.mktemp("server"), store, "load_models=all\n", "--dt") as served:
        yield served


def add(served: TorchServe, body: bytes, sequence_id: str = "") -> Reply:
    return served.ask("POST", "/predictions/sums", body, {ID: sequence_id} if sequence_id else None)


def test_requests_of_a_sequence_meet_its_state(served: TorchServe) -> None:
    begun = [add(served, b"1") for _ in range(3)]
    ids = [reply.headers[ID] for reply in begun]
    assert len(set(ids)) == 3
    assert all(each.startswith("ts-seq-") for each in ids)
    pids = {sequence_id: json.loads(reply.body)["pid"] for sequence_id, reply in zip(ids, begun, strict=True)}
    assert len(set(pids.values())) == 2  # the sequences are spread over the workers
    for number, expected in ((5, 6), (7, 13)):
        for sequence_id in ids:
            told = json.loads(add(served, b"%d" % number, sequence_id).body)
            assert told == {"sum": expected, "pid": pids[sequence_id]}
    for sequence_id in ids:
        assert json.loads(add(served, b"end", sequence_id).body)["sum"] == 13
    assert json.loads(add(served, b"2", ids[0]).body)["sum"] == 2  # begun anew
    add(served, b"end", ids[0])


def test_sequences_beyond_their_number_are_refused_until_one_has_ended(served: TorchServe) -> None:
    open_ids = [f"s{number}" for number in range(4)]
    for sequence_id in open_ids:
        assert add(served, b"1", sequence_id).status == 200
    refused = add(served, b"1", "fifth")
    assert (refused.status, refused.json["type"]) == (503, "ServiceUnavailableException")
    assert "exceeds maxSequenceJobQueueSize" in refused.json["message"]
    assert add(served, b"end", "s0").status == 200
    assert add(served, b"1", "fifth").status == 200
    for sequence_id in (*open_ids[1:], "fifth"):
        assert json.loads(add(served, b"end", sequence_id).body)["sum"] == 1


def test_a_sequence_whose_worker_has_died_is_refused_once(served: TorchServe) -> None:
    assert add(served, b"4", "mortal").status == 200
    died = add(served, b"die", "mortal")
    assert (died.status, died.json["message"]) == (500, "Worker died.")
    refused = add(served, b"4", "mortal")
    assert (refused.status, refused.json["type"]) == (503, "ServiceUnavailableException")
    assert "has ended with the instance that had its state" in refused.json["message"]
    assert json.loads(add(served, b"4", "mortal").body)["sum"] == 4
    add(served, b"end", "mortal")


def test_sequences_over_grpc(served: TorchServe) -> None:
    with Stub(served.grpc_inference_port, INFERENCE) as stub:
        requests = [
            Prediction(model_name="sums", sequenceId=sequence_id, input={"data": body})
            for sequence_id, body in (
                ("a", b"1"),
                ("b", b"10"),
                ("a", b"2"),
                ("b", b"20"),
                ("a", b"end"),
                ("b", b"end"),
            )
        ]
        told: dict[str, list[int]] = {"a": [], "b": []}
        for each in stub.converse("StreamPredictions2", requests):
            told[each.sequenceId].append(json.loads(each.prediction)["sum"])
        assert told == {"a": [1, 3, 3], "b": [10, 30, 30]}
        begun: Any = stub.ask("Predictions", model_name="sums", input={"data": b"3"})
        assert begun.sequenceId.startswith("ts-seq-")
        ended = stub.ask("Predictions", model_name="sums", sequenceId=begun.sequenceId, input={"data": b"end"})
        assert json.loads(ended.prediction)["sum"] == 3


def test_a_request_that_goes_on_is_executed_with_those_that_come(served: TorchServe, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(served.ask, "POST", "/predictions/steps", f"3 {fifo}".encode())
        held = os.open(fifo, os.O_WRONLY)  # returns once the handler has opened it: the first is being executed
        others = [pool.submit(served.ask, "POST", "/predictions/steps", number) for number in (b"1", b"2")]
        wait_until(lambda: described(served, "steps")["jobQueueStatus"]["pendingRequests"] == 2)
        os.write(held, b"on\n")
        replies = [each.result(DEADLINE_S) for each in (first, *others)]
    os.close(held)
    # The first one was executed alone, then with both others, then with the one that was left of them.
    assert [each.body for each in replies] == [b"2/1 1/3 0/2 ", b"0/3 ", b"1/3 0/2 "]
    assert [each.headers["X-First-Batch"] for each in replies] == ["1", "3", "3"]
    assert [each.headers["ts_stream_next"] for each in replies] == ["true", None, "true"]


@pytest.mark.parametrize("number", [b"0", b"-1"])  # the second one's raises what is no Exception
def test_a_criterion_that_fails_is_an_error(served: TorchServe, number: bytes) -> None:
    failed = served.ask("POST", "/predictions/steps", number)
    assert (failed.status, failed.json["message"]) == (503, "Prediction failed")
    assert served.ask("POST", "/predictions/steps", b"2").body == b"1/1 0/1 "


def test_a_sequences_requests_go_on_one_after_the_other(served: TorchServe) -> None:
    asked = [served.ask("POST", "/predictions/both", body, {ID: "x"}) for body in (b"3", b"5", b"1")]
    assert [each.body for each in asked] == [b"2 1 0 ", b"4 3 ", b"3 "]


def test_the_description_says_so(served: TorchServe) -> None:
    told = described(served, "sums")
    assert (told["stateful"], told["maxNumSequence"], told["sequenceMaxIdleMSec"]) == (True, 4, 60000)
    assert described(served, "steps")["continuousBatching"] is True


def described(served: TorchServe, name: str) -> Any:
    (told,) = served.manage("GET", f"/models/{name}").json
    return told
