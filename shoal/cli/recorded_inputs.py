"""The inputs of recorded requests, in the shapes in which clients send them."""

from typing import TYPE_CHECKING

from shoal.frontend.v2.generate import fitted
from shoal.model_config.signature import Signature

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedRequest
    from shoal.workers.tensors import Array


def recorded_inputs(request: "RecordedRequest", signature: Signature | None) -> "dict[str, Array]":
    """The inputs of a recorded request to a model with this signature (None: not known). A recording has tensors
    as the backend got them, after a `reshape` of the configuration, which is undone here by the signature. Raises
    ValueError where shape and data do not agree."""
    found = {each.name: each.array() for each in request.inputs}
    if signature is None:
        return found
    num_leading = 1 if signature.max_batch_size > 0 else 0
    for name, array in found.items():
        spec = signature.inputs.get(name)
        if spec is not None and spec.reshape is not None and array.ndim >= num_leading:
            leading = array.shape[:num_leading]
            num_rows = leading[0] if leading else 1
            shape = fitted(spec.dims, array.size // max(1, num_rows))
            found[name] = array if shape is None else array.reshape(leading + shape)
    return found
