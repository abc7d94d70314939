"""A model's own is_ready decides whether it is ready, for probes and for models that ask; no other's does."""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.end_to_end.raw_client import Client, Reply
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end

#: Is as ready as it was told to be; `num_asked` answers every command.
CODE = """
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.is_well, self.num_asked = True, 0

    {is_ready}

    def execute(self, requests):
        responses = []
        for request in requests:
            command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy()[0].decode()
            word, _, rest = command.partition(" ")
            said = getattr(self, word)(*rest.split())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([str(said).encode()]))]))
        return responses

    def count(self):
        return self.num_asked

    def get(self, is_well):
        self.is_well = eval(is_well)

    def hold(self, begun, end):
        open(begun, "w").close()
        open(end).close()

    def knows(self, model):
        return pb_utils.is_model_ready(model)
"""
SAYS = """
    def is_ready(self):
        self.num_asked += 1
        if self.is_well is None:
            raise ValueError("no connection to anything")
        return self.is_well
"""
WAITS = """
    async def is_ready(self):
        await asyncio.sleep(0 if self.is_well else 3600)
        return True
"""
MODELS = {"plain": ("", 1), "well": (SAYS, 1), "held": (SAYS, 1), "pair": (SAYS, 2), "waits": (WAITS, 1)}
NOT_READY = (400, b'{"error":"Model version not ready"}')
READY = (200, b"")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for name, (is_ready, count) in MODELS.items():
        config = config_text("python", "COMMAND STRING 1", "SAID STRING 1", count=count)
        add_model(repository, name, config, CODE.replace("    {is_ready}\n", is_ready))
    with serving_to_the_end(repository, "--http-process-count=1", "--log-verbose=1") as running:
        yield running
    assert b"Traceback" not in running.log, running.log.decode()


def ask(server: Server, path: str) -> Reply:
    with Client(server) as client:
        return client.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def probe(server: Server, model: str) -> tuple[int, bytes]:
    reply = ask(server, f"/v2/models/{model}/ready")
    return reply.status, reply.body


def command(server: Server, model: str, words: str) -> str:
    """What the model says."""
    tensor = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [words]}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with Client(server) as client:
        reply = client.ask(head.encode() + body)
    assert reply.status == 200, reply
    said: str = json.loads(reply.body)["outputs"][0]["data"][0]
    return said


def test_a_model_says_no_and_yes_again(server: Server) -> None:
    for path in ("well", "well/versions/1"):
        assert probe(server, path) == READY
        command(server, "well", "get False")
        assert probe(server, path) == NOT_READY
        assert ask(server, "/v2/health/ready").status == 200
        command(server, "well", "get True")
    assert probe(server, "well") == READY
    assert server.read_log(b"Model 'well_0_0' is not ready (user-defined check failed).")


def test_only_a_model_that_has_the_method_costs_the_lane_its_probe(server: Server) -> None:
    plain, well = (ask(server, f"/v2/models/{model}/ready") for model in ("plain", "well"))
    assert (plain.status, plain.took_the_road) == (200, False)
    assert (well.status, well.took_the_road) == (200, True)
    assert command(server, "plain", "count") == "0"


def test_what_it_raises_or_returns_wrongly_means_no_and_stands_in_the_log_once(server: Server) -> None:
    for words, complaint in (
        ("get None", b"is_ready of model instance 'well_0_0' failed: ValueError: no connection to anything"),
        (
            "get 1",
            b"is_ready of model instance 'well_0_0' failed: is_ready must return a bool, found type '<class 'int'>'.",
        ),
    ):
        command(server, "well", words)
        for _ in range(3):
            assert probe(server, "well") == NOT_READY
        assert server.read_log(complaint)
        command(server, "well", "get True")
        assert probe(server, "well") == READY
        server.read_on()
        assert server.log.count(complaint) == 1


def test_every_instance_has_a_say(server: Server) -> None:
    assert probe(server, "pair") == READY
    command(server, "pair", "get False")  # one of them
    assert probe(server, "pair") == NOT_READY
    end = time.monotonic() + DEADLINE_S
    while probe(server, "pair") != READY:
        command(server, "pair", "get True")
        assert time.monotonic() < end


def test_models_are_told_the_same(server: Server) -> None:
    assert command(server, "plain", "knows well") == "True"
    command(server, "well", "get False")
    assert command(server, "plain", "knows well") == "False"
    command(server, "well", "get True")
    assert [command(server, "plain", f"knows {model}") for model in ("well", "plain", "nobody")] == [
        "True",
        "True",
        "False",
    ]


def held(server: Server, directory: Path, meanwhile: Callable[[], None]) -> None:
    """Do something while the model `held` executes."""
    begun, end = directory / "begun", directory / "end"
    os.mkfifo(begun)
    os.mkfifo(end)
    with ThreadPoolExecutor(1) as pool:
        execution = pool.submit(command, server, "held", f"hold {begun} {end}")
        begun.open().close()  # returns when the model has opened it, too
        try:
            meanwhile()
        finally:
            end.open("w").close()
        execution.result()


def test_who_does_not_answer_within_five_seconds_is_not_ready(server: Server, tmp_path: Path) -> None:
    """One executes for longer, one waits for longer; the others are ready, and these two are when it is over."""
    command(server, "waits", "get False")
    asked = int(command(server, "held", "count"))

    def probe_all() -> None:
        with ThreadPoolExecutor(8) as pool:
            start_s = time.monotonic()
            late = [pool.submit(probe, server, model) for model in ("held", "held", "held", "waits", "waits")]
            assert [probe(server, model) for model in ("plain", "well", "pair")] == [READY] * 3
            assert time.monotonic() - start_s < 5
            assert [each.result() for each in late] == [NOT_READY] * 5
            assert time.monotonic() - start_s >= 5

    held(server, tmp_path, probe_all)
    assert server.read_log(b"is_ready of model instance 'waits_0_0' failed: is_ready has not returned within 5 s")
    assert server.read_log(b"not ready, since they have not answered within 5 s: shoal worker held_0_0 (CPU ")
    assert probe(server, "held") == READY
    assert int(command(server, "held", "count")) <= asked + 2  # once for all that came while it executed
    command(server, "waits", "get True")
    assert probe(server, "waits") == READY
