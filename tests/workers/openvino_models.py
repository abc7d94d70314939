"""OpenVINO for tests, imported the backend's way: an import by itself would report to its makers."""

from pathlib import Path
from typing import Any

from shoal.workers.backends import openvino as backend

ov: Any = vars(backend)["openvino"]
op: Any = ov.opset13


def parameter(shape: Any, type_: str = "f32", name: str = "X") -> Any:
    """An input."""
    node = op.parameter(ov.PartialShape(shape), getattr(ov.Type, type_))
    node.output(0).get_tensor().set_names({name})
    return node


def saved(directory: Path, node: Any, *parameters: Any, layout: str = "", name: str = "Y") -> str:
    """The path of an IR whose result is `node`."""
    node.output(0).get_tensor().set_names({name})
    made = ov.Model([node], list(parameters), "m")
    if layout:
        for end in (*made.get_parameters(), *made.get_results()):
            end.set_layout(ov.Layout(layout))
    file = str(directory / "model.xml")
    ov.save_model(made, file, compress_to_fp16=False)
    return file
