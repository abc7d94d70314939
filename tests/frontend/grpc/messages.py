"""ModelInferRequests for a model with two inputs, A and B, as a server takes them in."""

import struct
from typing import Any

from shoal.frontend.grpc import infer
from shoal.frontend.grpc.messages import service
from shoal.frontend.prepared import PreparedRequest
from shoal.star.models import ModelEntry


def message_of(raws: tuple[bytes, ...] = (), **more: Any) -> Any:
    """A request for `pair`, its inputs A and B."""
    request = service.ModelInferRequest(model_name="m", id="7", raw_input_contents=raws, **more)
    request.inputs.add(name="A", datatype="INT32", shape=[1, 2])
    request.inputs.add(name="B", datatype="BYTES", shape=[1, 1])
    return request


RAWS = (struct.pack("<2i", 1, 2), b"\3\0\0\0abc")


def prepare(entry: ModelEntry, request: Any, **more: Any) -> PreparedRequest:
    """As a server does: from the bytes."""
    parsed, raws = infer.parse(request.SerializeToString())
    return infer.prepare(entry, parsed, raws, **more)
