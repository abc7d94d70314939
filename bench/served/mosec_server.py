"""The models in mosec, one worker each: python mosec_server.py --port N, with MODEL and ENCODING in the environment.

With orjson in place of mosec's json, and no waiting for batches where a model has none, as a careful user would do.
"""

import os

import mosec
import numpy as np
import numpy.typing as npt
import orjson

from bench.served.session import open_session
from bench.workloads import MLP_512, MODELS

Floats = npt.NDArray[np.float32]


class JsonIdentity(mosec.Worker):  # type: ignore[misc]  # mosec is not installed where mypy runs
    """The identity on a JSON list of floats."""

    def deserialize(self, data: bytes) -> Floats:
        """Decode the body."""
        return np.array(orjson.loads(data), np.float32)

    def forward(self, data: Floats) -> Floats:
        """Run the model."""
        return data

    def serialize(self, data: Floats) -> bytes:
        """Encode the body."""
        return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)


class BinaryIdentity(JsonIdentity):
    """The identity on floats as they lie in memory."""

    resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> Floats:
        """Decode the body."""
        return np.frombuffer(data, np.float32)

    def serialize(self, data: Floats) -> bytes:
        """Encode the body."""
        return data.tobytes()


class Mlp(BinaryIdentity):
    """The model mlp: a batch of rows through ONNX Runtime."""

    def __init__(self) -> None:
        super().__init__()
        self._session = open_session()

    def forward(self, data: list[Floats]) -> list[Floats]:  # type: ignore[override]  # a list where mosec batches
        """Run the model on a batch."""
        return list(self._session.run(None, {MLP_512.input_names[0]: np.stack(data)})[0])


def main() -> None:
    """Serve until SIGTERM."""
    model, encoding = MODELS[os.environ["MODEL"]], os.environ["ENCODING"]
    server = mosec.Server()
    route = f"/{model.name}/{encoding}"
    if model is MLP_512:
        server.append_worker(Mlp, max_batch_size=model.max_batch_size, max_wait_time=1, route=route)
    else:
        server.append_worker(JsonIdentity if encoding == "json" else BinaryIdentity, route=route)
    server.run()


if __name__ == "__main__":
    main()
