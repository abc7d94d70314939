"""A model of ragged batches: small, and made where it is needed."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save_summing(path: Path) -> Path:
    """Y is X; SUM is that of each request, of which ENDS, a batch input, says where it begins and ends."""
    inputs = [
        helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("ENDS", TensorProto.INT32, ["m"]),
    ]
    outputs = [
        helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("SUM", TensorProto.FLOAT, ["k", 1]),
    ]
    constants = {"axis": np.array(0), "pads": np.array([1, 0]), "one": np.array([1]), "zero": np.array([0])}
    constants |= {"last": np.array([-1]), "end": np.array([2**31 - 1])}
    nodes = [
        ("Identity", ["X"], ["Y"]),
        ("CumSum", ["X", "axis"], ["sums"]),
        ("Pad", ["sums", "pads"], ["padded"]),
        ("Gather", ["padded", "ENDS"], ["at"]),
        ("Slice", ["at", "one", "end"], ["ends"]),
        ("Slice", ["at", "zero", "last"], ["starts"]),
        ("Sub", ["ends", "starts"], ["each"]),
        ("Unsqueeze", ["each", "one"], ["SUM"]),
    ]
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes], "g", inputs, outputs,
        [numpy_helper.from_array(array.astype(np.int64), name) for name, array in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
