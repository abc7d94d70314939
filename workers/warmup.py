"""The first run, before an instance is called ready: zeros of the smallest legal shape.

It pays for what frameworks do at their first run (memory, kernels). Whether zeros suit the model nobody knows, so its
failure is logged and no more. Runs in a worker, while it loads.
"""

import numpy as np

from shoal.datatypes import BYTES
from shoal.model_config.signature import Signature, TensorSpec
from shoal.workers.tensors import Array


def smallest_inputs(signature: Signature) -> dict[str, Array] | None:
    """One row of zeros per input that must be given, variable dimensions 1; None where a text must be guessed."""
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    if any(spec.datatype is BYTES for spec in required):
        return None
    leading = (1,) if signature.max_batch_size > 0 else ()
    return {spec.name: np.zeros(leading + _smallest_dims(spec), spec.datatype.dtype) for spec in required}


def _smallest_dims(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(max(dim, 1) for dim in (spec.dims if spec.reshape is None else spec.reshape))
