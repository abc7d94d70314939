"""The Python backend for several models in one interpreter: each TritonPythonModel is run by the thread that waits."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import cast

from triton_python_backend_utils import runtime
from triton_python_backend_utils.runtime import Runtime

from shoal.model_config.autocomplete import ModelIO
from shoal.star.client import StarClient
from shoal.testing.client import LocalClient
from shoal.testing.event_loop import InlineEventLoop, VirtualEventLoop
from shoal.testing.simulation import Simulation
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import BackendModel, Device
from shoal.workers.backends.python.backend import PythonBackend
from shoal.workers.backends.python.raised import original
from shoal.workers.backends.python.requests import ServedRequest
from shoal.workers.backends.python.runtime import WorkerRuntime
from shoal.workers.requests import Request

#: The isolations of the running models, the latest last: a model that calls another is suspended meanwhile. Models run
#: in one thread at a time; threads that they start use the isolation that is in force at that moment.
_running: "list[ModelIsolation]" = []


class ModelIsolation:
    """The modules, paths and runtime of one model instance, which sees the modules beside it and no other model's.

    In a worker a model has the interpreter to itself. Here several share one, and two of them may have a `utils.py` or
    lie in a directory called "1": while a model runs, only its own modules are in sys.modules.
    """

    def __init__(self, directory: str, runtime: Runtime) -> None:
        """Modules in the model's `directory`, which ends with a slash, belong to this instance."""
        self._directory = directory
        self._runtime = runtime
        # Changed by enter.
        self._modules: dict[str, ModuleType] = {}
        self._paths: list[str] = []
        self._known: set[str] = set()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Run the body of the `with`, the model's code, with the model's own modules, paths and runtime."""
        if _running:
            _running[-1]._take_away()
        _running.append(self)
        self._put()
        try:
            yield
        finally:
            self._take_away()
            _running.remove(self)
            if _running:
                _running[-1]._put()

    def _put(self) -> None:
        self._known = set(sys.modules)
        sys.modules.update(self._modules)
        sys.path.extend(self._paths)
        runtime.set_runtime(self._runtime)  # and left there: threads of the model may still need it

    def _take_away(self) -> None:
        for name in sys.modules.keys() - self._known:
            if self._is_own(sys.modules[name]):
                self._modules[name] = sys.modules.pop(name)
        self._paths = [path for path in sys.path if self._holds(path)]
        sys.path[:] = [path for path in sys.path if path not in self._paths]

    def _is_own(self, module: ModuleType) -> bool:
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        return any(self._holds(place) for place in places)

    def _holds(self, path: str) -> bool:
        return (path + os.sep).startswith(self._directory)


class InlineRuntime(WorkerRuntime):
    """A worker's runtime whose calls go through the star's own client."""

    def __init__(self, model: str, simulation: Simulation, client: LocalClient) -> None:
        super().__init__(model)
        self._simulation = simulation
        self._client = cast("StarClient", client)  # LocalClient has all that a runtime and its calls use

    def wait(self, changed: threading.Condition, has_come: Callable[[], bool]) -> None:
        """Run due work in the waiting thread, until a response has arrived."""
        changed.release()
        try:
            self._simulation.run_until(has_come)
        finally:
            changed.acquire()


class InlinePythonBackend(PythonBackend):
    """The backend of one instance, with modules of its own. Its coroutines run on the star's clock."""

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
            runtime.set_runtime(None)  # the runtime would keep the test's whole server alive

    def _own_process(self, model: BackendModel, device: Device) -> None:
        """Do nothing: the settings of the interpreter are the test's."""

    def _fail(self, batch: Sequence[ServedRequest], error: BaseException) -> None:
        """Fail the requests of a batch without a line in the log: the test gets the error."""
        failure = self._model.as_failure(error)
        self._simulation.note_cause(failure, original(error))
        for request in batch:
            request.fail(failure)
