"""A request as a backend sees it: its tensors as arrays that look into the client's block.

Pure. Runs in a worker. The front end has checked the request against the model; here only what would make this
process fail or mix up rows is checked again, because it stands in memory that another process can write.
"""

from typing import NamedTuple

import msgpack

from shoal.datatypes import format_shape
from shoal.errors import InternalError
from shoal.model_config.signature import Signature
from shoal.request import Parameters
from shoal.workers.tensors import Array, open_tensor


class Request(NamedTuple):
    """One request of a batch. `inputs` are read-only and valid until its answer is published."""

    position: int  # within the batch
    id: str
    inputs: dict[str, Array]
    rows: int  # the first dimension of its inputs; 1 where the model has no batch dimension
    requested_outputs: tuple[str, ...]  # empty = all
    parameters: Parameters

    def wants(self, output: str) -> bool:
        """Whether the client asked for this output."""
        return not self.requested_outputs or output in self.requested_outputs


def open_request(position: int, block: memoryview, header: memoryview, signature: Signature) -> Request:
    """The request whose header lies in `block`. Raises InternalError where it is damaged or not for this model."""
    specs, batching = signature.inputs, signature.max_batch_size > 0
    inputs: dict[str, Array] = {}
    rows = -1
    try:
        # The form is that of shoal.request.pack_request. Read here without its tuples, which would be thrown away at
        # once (2 us of 15 a request costs); open_tensor finds what lies outside the block.
        id_, tensors, outputs, parameters = msgpack.unpackb(header, use_list=False, raw=False)
        if not (type(id_) is str and type(outputs) is tuple and type(parameters) is dict):
            raise TypeError("id, outputs or parameters are of another kind")
        for name, wire, shape, offset, nbytes in tensors:
            spec = specs.get(name)
            if spec is None or spec.datatype.wire != wire:
                raise InternalError(f"model '{signature.name}' has no input '{name}' of datatype number {wire}")
            array = inputs[name] = open_tensor(spec, shape, offset, nbytes, block)
            if batching:
                if not (array.ndim and rows in (-1, len(array))):
                    raise InternalError(
                        f"input '{name}' of model '{signature.name}' has shape {format_shape(array.shape)}, expected a "
                        f"first dimension of {'the batch' if rows < 0 else rows}"
                    )
                rows = len(array)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise InternalError(f"a request header in shared memory is damaged: {error}") from error
    return Request(position, id_, inputs, 1 if rows < 0 else rows, outputs, parameters)


def log_prefix(request_id: str) -> str:
    """How Triton introduces a sentence about one request."""
    return f"[request id: {request_id or '<id_unknown>'}] "
