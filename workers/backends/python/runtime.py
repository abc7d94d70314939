"""What a worker gives to its model: the log."""

import logging
from collections.abc import Callable
from typing import NoReturn

from shoal import log
from triton_python_backend_utils import InferenceRequest, TritonModelException
from triton_python_backend_utils.runtime import OnResponse, Runtime

_log = logging.getLogger(__name__)

_LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "VERBOSE": log.verbose(1)}


class WorkerRuntime(Runtime):
    """The runtime of a worker that is no client of the server's: it cannot ask other models."""

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """A line of the server's log that names the model's file."""
        number = _LEVELS.get(level, logging.INFO)
        if _log.isEnabledFor(number):
            _log.handle(_log.makeRecord(_log.name, number, file, line, message, (), None))

    def submit(self, request: InferenceRequest, decoupled: bool, on_response: OnResponse) -> Callable[[], None]:
        """Raises TritonModelException."""
        self._refuse()

    def load_model(self, name: str, config: str, files: dict[str, bytes] | None) -> None:
        """Raises TritonModelException."""
        self._refuse()

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Raises TritonModelException."""
        self._refuse()

    def is_model_ready(self, name: str, version: str) -> bool:
        """Raises TritonModelException."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TritonModelException("This worker cannot ask other models.")
