"""A server started and asked as SageMaker does, and models in its place."""

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.asking import fetch
from tests.end_to_end.http_cases.models import pair
from tests.end_to_end.server import Server

MIME = "application/vnd.sagemaker-triton.binary+json;json-header-size="
CONFIG = f'backend: "identity"\n{pair("A", "INT32", "2")}instance_group {{ count: 1 kind: KIND_CPU }}\n'
TENSOR = {"name": "A", "datatype": "INT32", "shape": [2]}
DATA = b"\1\0\0\0\2\0\0\0"
Answer = tuple[int, str | None, bytes]


def write_model(directory: Path, config: str = CONFIG) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)


class SageMaker:
    """What calls a container there."""

    def __init__(self, server: Server) -> None:
        self._port = server.port_of("Sagemaker HTTPService")

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        reply = fetch(self._port, path, body, method, headers)
        return reply.status, reply.headers["Content-Type"], reply.body

    def load(self, name: str, url: Path) -> int:
        return self.ask("POST", "/models", json.dumps({"model_name": name, "url": str(url)}))[0]

    def infer(self, path: str) -> list[int]:
        """In JSON and in binary: both must say the same."""
        plain = json.dumps({"inputs": [{**TENSOR, "data": [1, 2]}]})
        status, content, body = self.ask("POST", path, plain)
        assert (status, content) == (200, "application/json"), body
        inputs = [{**TENSOR, "parameters": {"binary_data_size": len(DATA)}}]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        status, content, raw = self.ask("POST", path, head + DATA, {"Content-Type": f"{MIME}{len(head)}"})
        assert status == 200, raw
        assert content is not None
        assert content.startswith(MIME)
        assert raw[int(content.removeprefix(MIME)) :] == DATA
        told: list[int] = json.loads(body)["outputs"][0]["data"]
        return told


def write_ensemble(archive: Path, length: int) -> None:
    """A model `graph` of two steps, `first` and `second`, and the models of that name beside it."""
    tensors = pair("A", "INT32", str(length))
    for name in ("first", "second"):
        write_model(archive / name, CONFIG.replace("dims: [ 2 ]", f"dims: [ {length} ]"))
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "A" value: "{given}" }} '
        f'output_map {{ key: "OUT_A" value: "{made}" }} }}\n'
        for model, given, made in (("first", "A", "between"), ("second", "between", "OUT_A"))
    )
    write_model(archive / "graph", f'platform: "ensemble"\n{tensors}ensemble_scheduling {{ {steps} }}\n')
