"""Inputs of the samples as Triton's client for gRPC sends them."""

from typing import Any

import numpy as np
import tritonclient.grpc as client
from numpy.typing import NDArray


def tensor(name: str, array: NDArray[Any], datatype: str) -> client.InferInput:
    made = client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def pair(start: int = 0) -> list[client.InferInput]:
    array = np.arange(start, start + 16, dtype=np.int32).reshape(1, 16)
    return [tensor("INPUT0", array, "INT32"), tensor("INPUT1", array, "INT32")]


def countdown(*delays_ms: int) -> list[client.InferInput]:
    """One answer of `repeat` after each delay, which is its own number."""
    return [
        tensor("IN", np.array(delays_ms, np.int32), "INT32"),
        tensor("DELAY", np.array(delays_ms, np.uint32), "UINT32"),
        tensor("WAIT", np.array([0], np.uint32), "UINT32"),
    ]
