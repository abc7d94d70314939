"""The models in mosec, one worker each: python mosec_server.py --port N, with MODEL and ENCODING in the environment.

orjson instead of mosec's json, and a model without a batch runs without waiting for one: what a careful user would do.
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
    """A list of floats, to an array and back."""

    def deserialize(self, data: bytes) -> Floats:
        """From the body."""
        return np.array(orjson.loads(data), np.float32)

    def forward(self, data: Floats) -> Floats:
        """The model."""
        return data

    def serialize(self, data: Floats) -> bytes:
        """To the body."""
        return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)


class BinaryIdentity(JsonIdentity):
    """The identity with floats as they lie in memory."""

    resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> Floats:
        """From the body."""
        return np.frombuffer(data, np.float32)

    def serialize(self, data: Floats) -> bytes:
        """To the body."""
        return data.tobytes()


class Mlp(BinaryIdentity):
    """A batch of rows through ONNX Runtime."""

    def __init__(self) -> None:
        super().__init__()
        self._session = open_session()

    def forward(self, data: list[Floats]) -> list[Floats]:  # type: ignore[override]  # a list where mosec batches
        """The model."""
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
