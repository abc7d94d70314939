"""Models that are loaded, unloaded and asked by tests of model control, and what the index says of them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton

from tests.end_to_end.asking import outputs, tensors
from tests.end_to_end.server import DEADLINE_S, Server, descendants, wait_until
from tests.end_to_end.traffic import MODEL

Rows = list[dict[str, Any]]
#: Names that a model's directory may have; the first is of one of Triton's own test repositories.
NAMES = (
    "nop_TYPE_FP32_-1,-1", "-two words", "%41:100%;c=d", "q?a#b&c+d", "'quo\"ted\\'", "{brace}[1]~", "*",
    "<t>|$(x)`!^@", "größe\u3000日本🐟\ufffd", "é" * 127,
)  # fmt: skip
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "A" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "B" data_type: TYPE_INT32 dims: [ 4 ] }
ensemble_scheduling { step {
  model_name: "STEP" model_version: -1
  input_map { key: "A" value: "A" } output_map { key: "B" value: "B" }
} }
"""


def write_model(repository: Path, name: str, *versions: int, config: str = MODEL) -> Path:
    for version in versions:
        (repository / name / str(version)).mkdir(parents=True, exist_ok=True)
    (repository / ".written").write_text(config)
    (repository / ".written").rename(repository / name / "config.pbtxt")  # whole, whenever a server polls
    return repository / name


def index(client: triton.InferenceServerClient, *models: str) -> Rows:
    """What it says of these models, or of all."""
    rows: Rows = client.get_model_repository_index()
    return [row for row in rows if not models or row["name"] in models]


def index_once(client: triton.InferenceServerClient, expected: Rows) -> None:
    """Wait until the index says this of these models."""
    models = {row["name"] for row in expected}
    wait_until(lambda: index(client, *models) == expected, lambda: index(client, *models))


def ready(name: str, version: int = 1) -> dict[str, Any]:
    return {"name": name, "version": str(version), "state": "READY"}


def unloaded(name: str, version: int = 1) -> dict[str, Any]:
    return {"name": name, "version": str(version), "state": "UNAVAILABLE", "reason": "unloaded"}


def ask(server: Server, verb: str, model: str) -> None:
    """By a client of its own, whatever thread this is."""
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as own:
        getattr(own, verb)(model)


@contextmanager
def loaded(server: Server, *models: str) -> Iterator[Server]:
    """A server under explicit control with these models, which no other file of tests may write; nothing runs of them
    afterwards."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda model: ask(server, "load_model", model), models))
    server.children = descendants(server.process.pid)
    yield server
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
        for model in models:
            client.unload_model(model)
        index_once(client, [unloaded(model) for model in sorted(models)])


def infer(client: triton.InferenceServerClient, name: str, version: str = "") -> str:
    """The version that answers."""
    given = np.arange(4, dtype=np.int32).reshape(1, 4)
    response = client.infer(name, tensors({"A": given}), model_version=version)
    assert np.array_equal(outputs(response)["B"], given)
    answered: str = response.get_response()["model_version"]
    return answered


def instances(client: triton.InferenceServerClient, model: str) -> list[dict[str, Any]]:
    response = client._get(f"v2/repository/models/{model}/instances", None, None)
    (version,) = json.loads(response.read())["versions"]
    found: list[dict[str, Any]] = version["instances"]
    return found
