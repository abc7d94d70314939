"""The backend without shared memory: files, a configuration and requests in, outputs and sentences out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from shoal.datatypes import BY_CONFIG_NAME, BYTES
from shoal.model_config.signature import Signature
from shoal.workers.answers import Answers
from shoal.workers.backends.embedding.backend import EmbeddingBackend
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import Request, RequestReader
from shoal.workers.tensors import Array, encode_strings
from tests.request_headers import request_header
from tests.workers.worker_harness import CPU, model, model_config, tensor_config

Dims = Sequence[int]


def config(
    ids: tuple[str, Dims], vectors: tuple[str, Dims], max_batch_size: int = 0, *, offsets: bool = False, **settings: str
) -> dict[str, Any]:
    """One input `ids`, one output `vectors`; with `offsets`, an input of that name, too."""
    inputs = [tensor_config("ids", *ids)]
    if offsets:
        inputs.append(tensor_config("offsets", "TYPE_INT32", [-1]))
        settings["offsets"] = "offsets"
    return model_config(
        inputs,
        [tensor_config("vectors", *vectors)],
        max_batch_size=max_batch_size,
        backend="embedding",
        parameters=settings,
    )


def loaded(directory: Path, configuration: dict[str, Any]) -> EmbeddingBackend:
    backend = EmbeddingBackend()
    backend.load(model(configuration, str(directory / "any")), CPU)
    return backend


class Placed:
    """Answers that keep what the backend placed, and for whom. They stand before real ones: a compiled class could not
    be inherited from."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answers, name)

    def place(self, requests: Sequence[Request], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """The real answers' method."""
        self.positions = [request.position for request in requests]
        self.outputs = self._answers.place(requests, shapes)
        return self.outputs


def ask(
    backend: EmbeddingBackend,
    configuration: dict[str, Any],
    *requests: Mapping[str, Array],
    outputs: Sequence[Sequence[str]] = (),
) -> Placed:
    """One batch; `outputs` are those that each request wants, where it does not want all."""
    signature = Signature.from_config(configuration)
    reader = RequestReader(signature)
    opened = []
    for position, inputs in enumerate(requests):
        body, refs = bytearray(), []
        for name, array in inputs.items():
            datatype = signature.inputs[name].datatype
            data = encode_strings(array) if datatype is BYTES else array.tobytes()
            body += bytes(-len(body) % 64)
            refs.append([name, datatype.wire, list(array.shape), len(body), len(data)])
            body += data
        header = request_header("", refs, list(outputs[position] if outputs else ()), {})
        opened.append(reader.open(position, memoryview(bytes(body)).toreadonly(), header))
    answers = Placed(Answers(len(requests), OutputLayouts(signature)))
    backend.execute(opened, cast(Answers, answers))
    return answers


def vectors(directory: Path, configuration: dict[str, Any], ids: Any, **more: Array) -> Array:
    """The output of a model with one request, freshly loaded."""
    dtype = BY_CONFIG_NAME[configuration["input"][0]["data_type"]].dtype
    answers = ask(loaded(directory, configuration), configuration, {"ids": np.array(ids, dtype), **more})
    if answers.errors:
        raise answers.errors[0]
    return answers.outputs["vectors"]
