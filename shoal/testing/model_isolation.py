"""Isolation of Python models in one interpreter: each sees the modules beside it and its own runtime, never another's.

In a worker a model has the interpreter to itself. Here several share one, and two of them may have a `utils.py` or lie
in a directory called "1": while a model runs, only its own modules are in sys.modules.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from triton_python_backend_utils import runtime
from triton_python_backend_utils.runtime import Runtime

#: Of the running model, last; a model that calls another is suspended meanwhile. Models run in one thread
#: at a time, except threads that they start: these see whatever is there.
_running: "list[ModelIsolation]" = []


class ModelIsolation:
    """The modules and the runtime of one model instance."""

    def __init__(self, directory: str, runtime: Runtime) -> None:
        """Modules from the model's `directory`, which ends with a slash, are its own."""
        self._directory = directory
        self._runtime = runtime
        # Changed by enter.
        self._modules: dict[str, ModuleType] = {}
        self._paths: list[str] = []
        self._known: set[str] = set()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Run the model's code with its own modules and runtime."""
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
