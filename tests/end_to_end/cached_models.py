"""Models whose responses are cached, and clients of theirs."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, samples, wait_until

CONFIG = config_text("python", "X FP32 -1", "Y FP32 -1, Z FP32 -1", rows=8)
ENABLE = "response_cache { enable: true }"
MODEL = python_model("""
    def initialize(self, args):
        self.path = args["model_repository"]

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()) for each in requests]

    def answer(self, x):
        first = x.flat[0]
        if first == 100:
            open(f"{self.path}/gate").close()
        if first == 13 and os.path.exists(f"{self.path}/poison"):
            os.remove(f"{self.path}/poison")
            os.kill(os.getpid(), signal.SIGKILL)
        if first < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2), pb_utils.Tensor("Z", x * 3)])
""")
HOLD, KILL = 100, 13


class Asker:
    """Asks over one protocol; connections of its own, so that it may be used by many threads."""

    def __init__(self, server: Server, protocol: Any) -> None:
        self._protocol = protocol
        self._url = f"127.0.0.1:{server.grpc_port if protocol is tritonclient.grpc else server.http_port}"
        #: A number that is asked for over this protocol alone.
        self.own = 0.25 if protocol is tritonclient.grpc else 0.5

    def ask(self, model: str, *numbers: float, outputs: tuple[str, ...] = (), **wishes: Any) -> dict[str, bytes]:
        """The bytes of the outputs."""
        with self._protocol.InferenceServerClient(self._url) as client:
            tensor = self._protocol.InferInput("X", [1, len(numbers)], "FP32")
            tensor.set_data_from_numpy(np.array([numbers], np.float32))
            wanted = [self._protocol.InferRequestedOutput(name) for name in outputs] or None
            answer = client.infer(model, [tensor], outputs=wanted, **wishes)
        arrays = {name: answer.as_numpy(name) for name in ("Y", "Z")}
        return {name: array.tobytes() for name, array in arrays.items() if array is not None}


def expected(*numbers: float) -> dict[str, bytes]:
    array = np.array([numbers], np.float32)
    return {"Y": (array * 2).tobytes(), "Z": (array * 3).tobytes()}


def ask_eight_times_at_once(server: Server, asker: Asker, gate: Gate) -> None:
    """None is answered before all have been looked for."""
    before = num_lookups(server)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(asker.ask, "cached", HOLD, asker.own) for _ in range(8)]
        wait_for_lookups(server, before + 8)
        assert not any(each.done() for each in asked)
        with gate.opened():
            assert all(each.result(DEADLINE_S) == expected(HOLD, asker.own) for each in asked)


def wait_for_lookups(server: Server, least: float) -> None:
    """Return once answers have been looked for so many times."""
    wait_until(lambda: num_lookups(server) >= least)


def num_lookups(server: Server) -> float:
    """Those that are still waited for, too."""
    return samples(server.metrics_port)["nv_cache_num_lookups"]
