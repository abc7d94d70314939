"""The services of a worker to its model: calls of other models and model control. All threads of the model may use
them."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from triton_python_backend_utils import InferenceResponse, TritonModelException
from triton_python_backend_utils.errors import as_triton_error
from triton_python_backend_utils.model_request import ModelRequest
from triton_python_backend_utils.runtime import Runtime

from shoal.errors import ShoalError, UnavailableError
from shoal.open_files import explain
from shoal.star import client, model_control
from shoal.star.client import StarClient
from shoal.star.known_server import is_ready
from shoal.workers.answers import Answers
from shoal.workers.backends.python.bls import NO_PARENTS, BlsCall, Parents, current_parents
from shoal.workers.backends.python.gpu_calls import GpuCalls
from shoal.workers.requests import Request

if TYPE_CHECKING:
    from triton_python_backend_utils.runtime import OnResponse


class WorkerRuntime(Runtime):
    """The runtime of a worker's instances; `Runtime` describes the methods that models use."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        # The worker's client in the star; made when the model first calls another model or loads one.
        self._client: StarClient | None = None
        #: For calls with tensors on the GPU; set after the load of an instance whose tensors may stay there, else None.
        self.gpu: GpuCalls | None = None

    def follow_forks(self) -> None:
        """Let processes that the model forks from now on, as multiprocessing does, call models, too. This method is to
        be called once."""
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """In a process that the model has just forked, leave the worker's client of the star to the worker. The forked
        process joins the star with its own first call, and its calls are made for no request, since the process may
        outlive the requests that are being executed."""
        self._lock = threading.Lock()  # another thread of the worker may have held the lock at the fork
        client, self._client = self._client, None
        current_parents.set(NO_PARENTS)
        if client is not None:
            client.abandon()

    # --- the requests for which calls are made ---

    def begin(self, requests: Sequence[Request], answers: Answers, *, can_lend: bool) -> Parents:
        """Make these requests the parents of this thread's calls from now on. Called by the thread of the worker's
        loop. `can_lend` says that `end` will be called before the requests are answered."""
        if self._client is not None:
            answers.watch()  # only once the model has called another model: watching for cancellation costs time
        parents = Parents(requests, can_lend, self._client is not None, answers.watch, threading.get_ident())
        current_parents.set(parents)
        return parents

    def end(self, parents: Parents) -> None:
        """Wait until no call uses these requests' tensors any more: the model may not have awaited its calls. The
        requests are answered after this."""
        current_parents.set(NO_PARENTS)
        if self._client is not None:
            self._client.wait_until_returned(parents.refs)

    def has_lent(self, parents: Parents) -> bool:
        """Whether calls still use these requests' tensors, so that `end` would wait."""
        return self._client is not None and self._client.has_lent(parents.refs)

    # --- calls ---

    def submit(self, request: ModelRequest, decoupled: bool, on_response: "OnResponse") -> Callable[[], None]:
        try:
            call = BlsCall(self._join(), self._model, request, decoupled, on_response, self.gpu)
        except ShoalError as error:
            on_response(InferenceResponse(error=as_triton_error(error)), True)
            return lambda: None
        call.attempt()
        return call.cancel

    def load_model(self, name: str, config: str, files: dict[str, bytes] | None) -> None:
        try:
            model_control.check_config(config)
            model_control.load(self._join().ask, name, config or None, dict(files or {}))
        except ShoalError as error:
            raise TritonModelException(str(error)) from error

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        try:
            self._join().ask("unload", {"model": name, "unload_dependents": unload_dependents})
        except ShoalError as error:
            raise TritonModelException(str(error)) from error

    def is_model_ready(self, name: str, version: str) -> bool:
        try:
            client = self._join()
            return is_ready(client.models.lookup(name, version), client.ask)
        except ShoalError:
            return False

    def _join(self) -> StarClient:
        """The worker's client, which joins the star now if it has not yet. Raises ShoalError if it cannot join; the
        next call of this method tries again."""
        with self._lock:
            if self._client is None:
                try:
                    self._client = client.join()
                    if self.gpu is not None:
                        self._client.on_segment_gone(self.gpu.forget)
                except (OSError, EOFError) as error:
                    sentence = f"Model '{self._model}' cannot call other models now: {explain(error)}"
                    raise UnavailableError(sentence) from error
            return self._client
