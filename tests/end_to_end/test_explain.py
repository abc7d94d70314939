"""Batching by goal on a real server, and `shoal explain` of models that are batched in each way."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from shoal.cli.remote import RemoteServer
from tests.end_to_end.command_line import shoal
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import Server, serving_to_the_end

TARGET = 'parameters {{ key: "latency_target_ms" value {{ string_value: "{}" }} }}'
MODELS = {
    "single": "",
    "silent": "dynamic_batching {}",
    "delayed": "dynamic_batching { max_queue_delay_microseconds: 1000 }",
    "wished": TARGET.format(50),
    "opted_out": "dynamic_batching {}\n" + TARGET.format(0),
}
NUM_REQUESTS = 64


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every model has been asked by eight clients at once."""
    repository = tmp_path_factory.mktemp("repository")
    for name, batching in MODELS.items():
        add_model(repository, name, config_text("identity", "X FP32 4", "Y FP32 4", batching, rows=8))
    with serving_to_the_end(repository, "--latency-target=30") as server:
        with triton.InferenceServerClient(server.url.removeprefix("http://"), concurrency=8) as client:
            for name in MODELS:
                asked = [client.async_infer(name, [tensor(number)]) for number in range(NUM_REQUESTS)]
                answers = [int(np.asarray(each.get_result().as_numpy("Y"))[0, 0]) for each in asked]
                assert answers == list(range(NUM_REQUESTS))
        yield server


def tensor(number: int) -> Any:
    """One row of that number."""
    x = triton.InferInput("X", [1, 4], "FP32")
    x.set_data_from_numpy(np.full((1, 4), number, np.float32))
    return x


def batches(server: Server, model: str) -> dict[str, Any]:
    """What the server says of the model's only version."""
    with closing(RemoteServer(server.url, timeout_s=30, headers={})) as asked:
        (version,) = asked.explanation(model)["versions"]
    return dict(version)


@pytest.mark.parametrize(
    ("model", "scheduler", "target_ms"),
    [("single", "default", None), ("silent", "goal", 30), ("delayed", "dynamic", None), ("wished", "goal", 50),
     ("opted_out", "dynamic", None)],
)  # fmt: skip
def test_who_batches_by_goal(explained: Server, model: str, scheduler: str, target_ms: int | None) -> None:
    told = batches(explained, model)
    assert (told["scheduler"], told.get("latency_target_ms")) == (scheduler, target_ms)
    if scheduler != "default":
        assert sum(each["batches"] for each in told["reasons"]) == sum(each["batches"] for each in told["measured"])
        assert {each["reason"] for each in told["last_batches"]} <= {each["reason"] for each in told["reasons"]}
    assert sum(each["rows"] * each["batches"] for each in told["measured"]) == NUM_REQUESTS
    if scheduler == "goal":
        assert all(each["ns"] > 0 for each in told["learned"])
        assert told["learned"]


def test_a_person_is_told(explained: Server) -> None:
    code, printed, complaint = shoal(explained, "explain", "wished")
    assert (code, complaint) == (0, "")
    first, heading, *_ = printed.splitlines()
    assert first.startswith("wished, version 1: batched so that answers take at most 50 ms; ")
    assert heading.split() == ["SHARE", "BATCHES", "WHY", "IT", "HAD", "ITS", "SIZE"]
    code, printed, _ = shoal(explained, "explain", "single")
    assert printed.startswith("single, version 1: without dynamic_batching each request is executed alone\nROWS ")


def test_a_model_that_is_not_there(explained: Server) -> None:
    said = "Request for unknown model: 'whale' is not found\n'shoal models' lists the models that the server has.\n"
    assert shoal(explained, "explain", "whale") == (2, "", said)
