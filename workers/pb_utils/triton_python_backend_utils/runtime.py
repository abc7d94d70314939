"""The interface of a server to its models: BLS, model control and the log, as the methods of one object.

A worker sets a runtime, and so does a test that runs a model without a server. In a plain interpreter there is none,
and functions that need one raise an error.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Condition
from typing import TYPE_CHECKING, TypeAlias

from triton_python_backend_utils.errors import TritonModelException

if TYPE_CHECKING:
    from triton_python_backend_utils.model_request import ModelRequest
    from triton_python_backend_utils.response import InferenceResponse

#: Called once per response, from any thread: the response and whether it is the last; (None, True) says that the
#: responses have ended without a further one.
OnResponse: TypeAlias = "Callable[[InferenceResponse | None, bool], None]"

_log = logging.getLogger("shoal.model")
#: Lines of level VERBOSE are written with --log-verbose 1 (shoal.log.verbose).
_LEVELS = {"VERBOSE": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


class Runtime(ABC):
    """A server as its models use it."""

    #: The version directory of the model that runs here.
    model_dir: str = ""
    #: Whether the model may call other models: it may between the end of its initialize and the start of its finalize.
    can_call_models: bool = False
    #: The number of requests that were made to other models so far.
    num_calls: int = 0

    @abstractmethod
    def submit(self, request: ModelRequest, decoupled: bool, on_response: OnResponse) -> Callable[[], None]:
        """Send `request` to another model; returns a function that cancels the request.

        Failures come as responses with an error. Raises TritonModelException only for a wrong use.
        """

    def wait(self, changed: Condition, has_come: Callable[[], bool]) -> None:
        """Wait, in a thread of the model that holds `changed`, until `has_come` returns True; each response notifies
        `changed`."""
        changed.wait_for(has_come)

    @abstractmethod
    def load_model(self, name: str, config: str, files: dict[str, bytes] | None) -> None:
        """Load a model and wait until it is served. Raises TritonModelException if the load fails."""

    @abstractmethod
    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Begin to unload a model. Raises TritonModelException if the server refuses."""

    @abstractmethod
    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether a model, or one version of it, is served."""

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """Write a line to the log, attributed to the model's file and line; `level` is INFO, WARNING, ERROR or
        VERBOSE."""
        number = _LEVELS.get(level, logging.INFO)
        if _log.isEnabledFor(number):
            _log.handle(_log.makeRecord(_log.name, number, file, line, message, (), None))


#: The runtime of this process; None in a plain interpreter.
current: Runtime | None = None


def set_runtime(runtime: Runtime | None) -> None:
    """Set the runtime of this process; None removes it."""
    global current
    current = runtime


def require(what: str) -> Runtime:
    """The runtime of this process. Raises TritonModelException if there is none; `what` is the call that needs one."""
    if current is None:
        raise TritonModelException(
            f"{what} needs a running server: this is a plain Python interpreter. Run the model with shoal.testing or "
            "`shoal run` to have one in this process."
        )
    return current
