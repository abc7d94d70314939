"""A response as the verbs `run` and `infer` print it: as text for a person, or as the JSON of POST …/infer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.cli.colour import printable

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.model_config.signature import Signature
    from shoal.workers.tensors import Array

_SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})


@dataclass(frozen=True, slots=True)
class PrintedResponse:
    """A response of a model. `outputs` are arrays by name; BYTES tensors are arrays of bytes objects."""

    model_name: str
    model_version: str
    outputs: Mapping[str, "Array"]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    signature: "Signature | None" = None  # tells which outputs are BF16, a type that numpy lacks

    def shown(self) -> "Iterator[tuple[str, str, Array]]":
        """Name, datatype and values of each output."""
        from shoal import bf16
        from shoal.datatypes import ALL, BF16

        for name, array in self.outputs.items():
            spec = self.signature.outputs.get(name) if self.signature is not None else None
            if spec is not None and spec.datatype is BF16:
                yield name, BF16.name, bf16.values_of(array)
            else:
                yield name, next(each.name for each in ALL if each.dtype == array.dtype), _plain(array)


def as_json(response: PrintedResponse) -> str:
    """A response as POST …/infer would answer it, on one line."""
    outputs = [
        {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
        for name, datatype, array in response.shown()
    ]
    request_id = {"id": response.id} if response.id else {}
    model = {"model_name": response.model_name, "model_version": response.model_version}
    more = {"parameters": response.parameters} if response.parameters else {}
    return json.dumps({**request_id, **model, **more, "outputs": outputs}, ensure_ascii=False)


def as_text(response: PrintedResponse) -> str:
    """A response for a person: each output's name, datatype and shape, then its values, long ones shortened."""
    import numpy as np

    lines = []
    for name, datatype, array in response.shown():
        lines.append(f"{name}  {datatype} {list(array.shape)}")
        with np.printoptions(precision=6, suppress=True, threshold=200, linewidth=116):
            lines += [f"  {line}" for line in str(array).splitlines()]
    # An ensemble's responses, as in Triton, have a sequence's parameters even if the request was in no sequence.
    said = {key: value for key, value in response.parameters.items() if value or key not in _SEQUENCE_PARAMETERS}
    lines += [printable(f"{key} = {value}") for key, value in said.items()]
    return "\n".join(lines) or "a response without outputs"


def times_text(times_ms: Sequence[float]) -> str:
    """A sentence on how long the repetitions of a request took."""
    ordered = sorted(times_ms)
    fastest, median, slowest = (f"{each:.3f} ms" for each in (ordered[0], ordered[len(ordered) // 2], ordered[-1]))
    return f"{len(ordered)} times: fastest {fastest}, median {median}, slowest {slowest}"


def _plain(array: "Array") -> "Array":
    """The array; one of bytes objects with the texts that they encode."""
    if array.dtype != object:
        return array
    texts = array.copy()
    texts.ravel()[:] = [each.decode(errors="replace") for each in array.ravel()]
    return texts
