"""The Python backend for several models in one interpreter: each TritonPythonModel is run by the thread that waits."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import cast

from triton_python_backend_utils import runtime

from shoal.model_config.autocomplete import ModelIO
from shoal.star.client import StarClient
from shoal.testing.client import LocalClient
from shoal.testing.event_loop import InlineEventLoop, VirtualEventLoop
from shoal.testing.model_isolation import ModelIsolation
from shoal.testing.simulation import Simulation
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import BackendModel, Device
from shoal.workers.backends.python.backend import PythonBackend
from shoal.workers.backends.python.requests import ServedRequest
from shoal.workers.backends.python.runtime import WorkerRuntime
from shoal.workers.requests import Request


class InlineRuntime(WorkerRuntime):
    """A worker's runtime whose calls go through the star's own client."""

    def __init__(self, model: str, simulation: Simulation, client: LocalClient) -> None:
        super().__init__(model)
        self._simulation = simulation
        self._client = cast("StarClient", client)  # it has all that a runtime and its calls use

    def wait(self, changed: threading.Condition, has_come: Callable[[], bool]) -> None:
        """Run what is due in the waiting thread, until a response has come."""
        changed.release()
        try:
            self._simulation.run_until(has_come)
        finally:
            changed.acquire()


class InlinePythonBackend(PythonBackend):
    """One instance, with modules of its own. Its coroutines run on the star's clock."""

    def __init__(self, model: BackendModel, simulation: Simulation, client: LocalClient) -> None:
        super().__init__()
        self._simulation = simulation
        self._runtime = InlineRuntime(model.name, simulation, client)
        self._isolation = ModelIsolation(os.path.dirname(model.version_dir) + os.sep, self._runtime)
        #: The loop of a model whose execute is a coroutine. Set by load.
        self.virtual_loop: VirtualEventLoop | None = None

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        with self._isolation.enter():
            return super().describe(model, device)

    def load(self, model: BackendModel, device: Device) -> None:
        with self._isolation.enter():
            super().load(model, device)
        if self._model.is_async:
            self.virtual_loop = VirtualEventLoop(self._simulation.time_ns, self._simulation.wake, self._isolation.enter)
            self._event_loop = InlineEventLoop(self.virtual_loop)

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        with self._isolation.enter():
            super().execute(requests, answers)

    def unload(self) -> None:
        with self._isolation.enter():
            super().unload()
        if runtime.current is self._runtime:
            runtime.set_runtime(None)  # it would keep the test's whole server alive

    def _own_process(self, model: BackendModel, device: Device) -> None:
        """Do nothing: the settings of the interpreter are the test's."""

    def _fail(self, batch: Sequence[ServedRequest], error: BaseException) -> None:
        """Fail the requests of a batch without a line in the log: the test gets the error."""
        failure = self._model.as_failure(error)
        self._simulation.note_cause(failure, error)
        for request in batch:
            request.fail(failure)
