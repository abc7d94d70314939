"""The envelope `kservev2`: KServe's second protocol, tensors by name, datatype and shape."""

from __future__ import annotations

from typing import Any

from ts.torch_handler.request_envelope.base import BaseEnvelope, list_of

_DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class KServev2Envelope(BaseEnvelope):
    """Gives the handler the tensors of the first request; the answer has one tensor per result."""

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The first request's tensors: as arrays of their shapes, or the first element of a BYTES tensor. Raises
        TypeError or ValueError for a body of another form."""
        inputs, body = list_of(data[0], "inputs")
        self.context.input_request_id = body.get("id")
        self.context.input_names = [each.get("name") for each in inputs]
        return [_tensor(each) for each in inputs]

    def format_output(self, data: Any) -> list[Any]:
        """The results as tensors in one response, each named after one of the request's tensors."""
        names = self.context.input_names
        outputs = [
            _output(names[index] if index < len(names) else f"output_{index}", each) for index, each in enumerate(data)
        ]
        model = (self.context.manifest or {}).get("model", {})
        answer = {
            "id": self.context.input_request_id or self.context.get_request_id(0),
            "model_name": model.get("modelName", self.context.model_name),
            "model_version": model.get("modelVersion"),
            "outputs": outputs,
        }
        return [answer]


def _tensor(described: Any) -> Any:
    import numpy as np

    datatype, values = described.get("datatype"), described.get("data")
    if datatype == "BYTES":
        return values[0] if isinstance(values, list) and values else values
    if datatype not in _DTYPES:
        raise ValueError(f"input '{described.get('name')}' has the datatype {datatype!r}, which is none of KServe's")
    return np.array(values, dtype=_DTYPES[datatype]).reshape(described.get("shape"))


def _output(name: str, result: Any) -> dict[str, Any]:
    import numpy as np

    if hasattr(result, "detach"):  # a torch tensor
        result = result.detach().cpu().numpy()
    if isinstance(result, (str, bytes, dict)):
        text = result.decode("utf-8", "replace") if isinstance(result, bytes) else result
        return {"name": name, "datatype": "BYTES", "data": [text], "shape": [1]}
    array = np.asarray(result)
    datatype = _NAMES.get(array.dtype.name, "BYTES")
    return {"name": name, "datatype": datatype, "data": array.flatten().tolist(), "shape": list(array.shape)}
