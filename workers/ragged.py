"""Batches whose inputs are not concatenated rows: ragged inputs, and tensors made from the batch itself.

    ragged input   an input with one dimension: all elements of all requests, one request after another
    batch_input    an input that no client sends: made from the shapes of the other inputs in each request
    batch_output   an output that is divided by elements: a request's part has the output's configured shape, variable
                   dimensions sized as in one of the request's inputs

The rules are Triton's (ragged batching). Pure. Runs in a worker.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from shoal.datatypes import BY_CONFIG_NAME, Datatype, format_shape
from shoal.errors import UnsupportedError
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature
from shoal.star.validation import log_prefix
from shoal.workers.answers import Answers, lacks_rows
from shoal.workers.requests import Request
from shoal.workers.tensors import Array

#: The shapes of one input in each request of the batch.
_Shapes: TypeAlias = Sequence[tuple[int, ...]]


def _item_shapes(shapes: _Shapes) -> Array:
    return np.repeat(np.array([shape[1:] for shape in shapes]), [shape[0] for shape in shapes], axis=0)


def _counts(shapes: _Shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


#: Kind of a batch_input → a function from its source input's shapes to its values. Of an input of kind
#: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE a model reads only the shape.
_KINDS: Mapping[str, Callable[[_Shapes], Array]] = {
    "BATCH_ELEMENT_COUNT": lambda shapes: np.array(_counts(shapes)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: np.cumsum(_counts(shapes)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda shapes: np.cumsum([0, *_counts(shapes)]),
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(max(_counts(shapes))),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).reshape(-1),
}


class RaggedBatches:
    """Assembles the batches of one model from requests, and divides the outputs among them."""

    def __init__(self, config: Config) -> None:
        self._signature = signature = Signature.from_config(config)
        self.inputs = frozenset(name for name, spec in signature.inputs.items() if spec.ragged)
        #: Name of each input that is made from the batch → the input's datatype.
        self.made: Mapping[str, Datatype] = {
            name: BY_CONFIG_NAME[made["data_type"]] for made in config["batch_input"] for name in made["target_name"]
        }
        self._kinds = [
            (name, made["kind"], made["source_input"][0])
            for made in config["batch_input"]
            for name in made["target_name"]
        ]
        #: Output that is divided by elements, not by rows → the input that gives the variable dimensions of a
        #: request's part.
        self.scattered: Mapping[str, str] = {
            name: made["source_input"][0] for made in config["batch_output"] for name in made["target_name"]
        }

    def __bool__(self) -> bool:
        """Whether the model has ragged inputs, batch_inputs or batch_outputs."""
        return bool(self.inputs or self._kinds or self.scattered)

    def joinable(self, requests: Sequence[Request], answers: Answers) -> Sequence[Request]:
        """The requests that can be assembled into one batch: here all of them. A subclass may leave out some, and note
        their errors in `answers`."""
        del answers
        return requests

    def gather(self, requests: Sequence[Request]) -> dict[str, Array]:
        """All inputs of the model, for these requests as one batch."""
        gathered = {
            name: np.concatenate(
                [
                    request.inputs[name].reshape(-1) if name in self.inputs else request.inputs[name]
                    for request in requests
                ]
            )
            for name in requests[0].parsed.inputs
        }
        for name, kind, source in self._kinds:
            shapes = [_shape(request, source) for request in requests]
            gathered[name] = _KINDS[kind](shapes).astype(self.made[name].dtype)
        return gathered

    def ends(self, requests: Sequence[Request]) -> dict[str, Array]:
        """Ragged input → the end of each row of each request, as an index (int64) into the input's elements."""
        ends = {}
        for name in self.inputs.intersection(requests[0].parsed.inputs):
            shapes = [_shape(request, name) for request in requests]
            lengths = [math.prod(shape[1:]) for shape in shapes for _ in range(shape[0])]
            ends[name] = np.cumsum(lengths, dtype=np.int64)
        return ends

    def add(self, requests: Sequence[Request], outputs: Mapping[str, Array], answers: Answers) -> None:
        """Answer each request with its part of the model's outputs. A request fails if an output is too short for that
        request's part."""
        if not self.scattered:
            answers.add_batch(requests, outputs)
            return
        row, ends = 0, dict.fromkeys(self.scattered, 0)
        for request in requests:
            row += request.parsed.rows
            parts: dict[str, Array] = {}
            for name, array in outputs.items():
                if name not in self.scattered:
                    got = len(array) if array.ndim else 0
                    if got < row:
                        answers.fail(request.position, lacks_rows(request, name, row, got))
                        break
                    parts[name] = array[row - request.parsed.rows : row]
                    continue
                # The output's variable dimensions have the sizes that they have in the source input.
                source = _shape(request, self.scattered[name])
                leading = (-1,) if self._signature.max_batch_size > 0 else ()
                dims = (*leading, *self._signature.outputs[name].model_dims)
                shape = tuple([size if dim == -1 else dim for dim, size in zip(dims, source, strict=False)])
                start, end = ends[name], ends[name] + math.prod(shape)
                ends[name] = end
                if array.size < end:
                    sentence = (
                        f"failed to split the output tensor '{name}' in responses: expected the elements of shape "
                        f"{format_shape(shape)} in model output, got {max(0, array.size - start)}"
                    )
                    answers.fail(request.position, UnsupportedError(log_prefix(request.id) + sentence))
                    break
                parts[name] = array.reshape(-1)[start:end].reshape(shape)
            else:
                answers.add(request, parts)


def _shape(request: Request, name: str) -> tuple[int, ...]:
    return request.parsed.inputs[name][1]
