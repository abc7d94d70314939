"""What a load that replaces instances waits for: the old ones' finalize, but no request that they still answer."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from tests.end_to_end.asking import infer as infer_all
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.lifecycle import ask, index_once, ready, unloaded
from tests.end_to_end.repositories import config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, wait_until

#: Input 1 waits at one gate, finalize at another; VERSION is the answer.
CODE = python_model("""
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            if request.inputs()[0].as_numpy()[0] == 1:
                open(f"{self.directory}/executes", "w").close()
                open(f"{self.directory}/execute_gate").close()
        answer = np.array([VERSION], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", answer)]) for _ in requests]

    def finalize(self):
        open(f"{self.directory}/finalize_gate").close()
        open(f"{self.directory}/finalised_{VERSION}_{os.getpid()}", "w").close()
""")


class Model:
    """One in the repository of the server."""

    def __init__(self, repository: Path, name: str, count: int = 1) -> None:
        self.directory = repository / name
        self.name = name
        self.write(1, count)
        self.execute_gate = Gate(self.directory / "execute_gate")
        self.finalize_gate = Gate(self.directory / "finalize_gate")

    def write(self, version: int, count: int = 1) -> None:
        (self.directory / str(version)).mkdir(parents=True, exist_ok=True)
        (self.directory / "config.pbtxt").write_text(config_text("python", "A INT32 1", "B INT32 1", count=count))
        (self.directory / str(version) / "model.py").write_text(CODE.replace("VERSION", str(version)))

    @property
    def num_finalised(self) -> int:
        return len(list(self.directory.glob("finalised_1_*")))


def infer(server: Server, model: str, value: int = 0) -> int:
    return int(infer_all(server, model, {"A": np.array([value], np.int32)})["B"][0])


def test_a_load_returns_after_the_old_instances_have_finalised(explicit: Server, shared: Path) -> None:
    model = Model(shared, "replaced", count=2)
    ask(explicit, "load_model", model.name)
    model.write(2)
    with ThreadPoolExecutor() as threads, triton.InferenceServerClient(explicit.url) as client:
        loaded = threads.submit(ask, explicit, "load_model", model.name)
        index_once(client, [{"name": model.name, "version": "1", "state": "UNLOADING"}, ready(model.name, 2)])
        assert infer(explicit, model.name) == 2  # requests do not wait for the load
        assert model.num_finalised == 0
        with model.finalize_gate.opened():
            loaded.result(DEADLINE_S)
            assert model.num_finalised == 2
            ask(explicit, "unload_model", model.name)
            index_once(client, [unloaded(model.name), unloaded(model.name, 2)])


def test_a_load_does_not_wait_for_requests_of_the_old_instances(explicit: Server, shared: Path) -> None:
    model = Model(shared, "busy")
    with model.finalize_gate.opened(), ThreadPoolExecutor() as threads:
        ask(explicit, "load_model", model.name)
        answered = threads.submit(infer, explicit, model.name, 1)
        wait_for_pending(explicit, model.name, 0)
        wait_until((model.directory / "executes").exists)
        assert not answered.done()
        model.write(2)
        ask(explicit, "load_model", model.name)
        assert infer(explicit, model.name) == 2
        assert not answered.done()
        with model.execute_gate.opened():
            assert answered.result(DEADLINE_S) == 1
        ask(explicit, "unload_model", model.name)
        with triton.InferenceServerClient(explicit.url) as client:
            index_once(client, [unloaded(model.name), unloaded(model.name, 2)])
