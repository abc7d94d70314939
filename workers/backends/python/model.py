"""A user's TritonPythonModel: how it is imported, and how each of its methods is called.

This file knows nothing of workers, so that a test can run a model in its own process. Whatever a model raises or
wrongly returns becomes a ShoalError with Triton's sentence.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import triton_python_backend_utils
from triton_python_backend_utils import InferenceRequest, InferenceResponse, ModelConfig, TritonModelException, runtime
from triton_python_backend_utils.model_config import using_decoupled_model_transaction_policy
from triton_python_backend_utils.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

from shoal.errors import InternalError
from shoal.model_config.messages import Config
from shoal.workers.backends.python import forks
from shoal.workers.backends.python.raised import original, raise_as_exception
from shoal.workers.sentences import text_of

CLASS = "TritonPythonModel"
#: Longest time that an is_ready may take that is a coroutine (Triton's).
IS_READY_S = 5.0

#: The result of execute, one element per request; None for a request that a response sender answers, or that returns to
#: its queue.
Responses = Sequence[InferenceResponse | None]

_NO_LIST = "Expected a list in the execute return, found type '{}'."
_NO_RESPONSE = "Expected an 'InferenceResponse' object in the execute function return list, found type '{}'."

# Stack frames of these files are left out of a model's errors: those of triton_python_backend_utils, which in Triton
# are C++ and have no frames; those of Python's importer and of Shoal's own model.py for vLLM, which do not help users.
_NO_FRAMES = (
    os.path.dirname(triton_python_backend_utils.__file__) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "vllm_backend") + os.sep,
    "<frozen importlib",
)


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """The names and files that identify a model and one instance of it."""

    name: str
    version: int
    instance_name: str  # such as "add_sub_0_0"
    version_dir: str
    file: str  # path of the model.py, in the version directory or in the directory of a backend
    kind: str = "KIND_CPU"
    device_id: int = 0


class PythonModel:
    """One instance of a model. `load` comes first, or `auto_complete` and then `load`."""

    def __init__(self, identity: InstanceIdentity, config: Config, first: "PythonModel | None" = None) -> None:
        """`first` is the first instance of the model in this process, whose module is used; None if this is the
        first."""
        self.identity = identity
        self._is_first = first is None
        # These fields are changed by configure and load.
        self.config = config
        self.is_decoupled = using_decoupled_model_transaction_policy(config)
        self.is_async = False
        self.has_ready_check = False
        self._module: ModuleType | None = None if first is None else first._module
        self._instance: Any = None

    # -- before it serves --

    def configure(self, config: Config) -> None:
        """Use `config`, the model's configuration as completed, from now on."""
        self.config = config
        self.is_decoupled = using_decoupled_model_transaction_policy(config)

    def auto_complete(self) -> Config:
        """The configuration as the model's auto_complete_config leaves it. Raises InternalError if that fails or
        returns no configuration."""
        config: Config = json.loads(json.dumps(self.config))
        try:
            with forks.end_here():
                hook = getattr(self._class(), "auto_complete_config", None)
                completed = ModelConfig(config) if hook is None else hook(ModelConfig(config))
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise InternalError(describe(error)) from original(error)
        if not isinstance(completed, ModelConfig):
            raise InternalError(
                f"auto_complete_config function in model '{self.identity.name}' must return a valid pb.ModelConfig "
                "object."
            )
        return completed.as_dict()

    def load(self) -> None:
        """Make the model's object and call its initialize. Raises InternalError with the text of any error."""
        try:
            with forks.end_here():
                self._instance = instance = self._class()()
                if hasattr(instance, "initialize"):
                    instance.initialize(self._arguments())
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise InternalError(describe(error)) from original(error)
        self.is_async = inspect.iscoroutinefunction(getattr(instance, "execute", None))
        self.has_ready_check = hasattr(instance, "is_ready")
        self._let_call_models(True)

    # -- while it serves --

    def execute(self, requests: Sequence[InferenceRequest]) -> Responses:
        """Run one batch, for a model whose execute is no coroutine. Exceptions of the model are raised unchanged, to be
        turned into errors by `as_failure`; raises TritonModelException for a wrong result."""
        depth = forks.depth  # does what `with forks.end_here()` does, in 1k instructions less per execution
        try:
            returned = self._instance.execute(list(requests))
        except BaseException as error:  # noqa: BLE001 - it is raised again
            forks.end_if_forked(depth, error)
            self._execute()  # raises if the model has no execute
            raise_as_exception(error)
        if forks.depth != depth:
            forks.end_if_forked(depth)
        return self._checked(requests, returned)

    async def execute_async(self, requests: Sequence[InferenceRequest]) -> Responses:
        """Run one batch, for a model whose execute is a coroutine. Raises as `execute` does."""
        with forks.end_here():
            returned = await self._execute()(list(requests))
        return self._checked(requests, returned)

    def end_sequence(self, correlation_id: int | str) -> None:
        """Call the model's end_sequence, if it has that method; raises whatever the method raises."""
        hook = getattr(self._instance, "end_sequence", None)
        if hook is not None:
            with forks.end_here():
                hook(correlation_id)

    def as_failure(self, error: BaseException) -> InternalError:
        """The error that clients get for an exception that an execution of the model has raised."""
        # The error has no __cause__: the exception's traceback leads back to the requests, and the cycle would keep
        # their memory mapped.
        return InternalError(
            f"Failed to process the request(s) for model '{self.identity.instance_name}', message: {describe(error)}"
        )

    def is_ready(self) -> bool:
        """The result of the model's is_ready; True if it has none. Raises whatever the method raises,
        TritonModelException for a wrong result, and for a coroutine's late one."""
        check = getattr(self._instance, "is_ready", None)
        if check is None:
            return True
        with forks.end_here():
            answer = check()
            if inspect.isawaitable(answer):
                import asyncio  # here, since asyncio takes 6 MB of memory: see event_loop.py

                answer = asyncio.run(_within(IS_READY_S, answer))
        if not isinstance(answer, bool):
            raise TritonModelException(f"is_ready must return a bool, found type '{type(answer)}'.")
        return answer

    def finalize(self) -> None:
        """Call the model's finalize and drop the object. Raises InternalError if finalize fails."""
        if self._is_first:  # the last to end: the process's other instances have ended before
            self._let_call_models(False)
        instance, self._instance = self._instance, None
        try:
            if hasattr(instance, "finalize"):
                with forks.end_here():
                    instance.finalize()
        except Exception as error:
            raise InternalError(describe(error)) from error

    # -- its parts --

    def _class(self) -> Any:
        if runtime.current is not None:
            runtime.current.model_dir = self.identity.version_dir
        if self._module is None:
            self._module = import_model(self.identity.file, self.identity.version_dir)
        if not hasattr(self._module, CLASS):  # the sentence begins with Python's own, as in Triton
            module = self._module.__name__
            values = vars(self._module).items()
            classes = [name for name, value in values if inspect.isclass(value) and value.__module__ == module]
            raise AttributeError(
                f"module '{module}' has no attribute '{CLASS}'. "
                f"'{self.identity.file}' has to define a class of this name; it defines {', '.join(classes) or 'none'}"
            )
        return getattr(self._module, CLASS)

    def _arguments(self) -> dict[str, str]:
        """The arguments of initialize; all are strings, as in Triton."""
        identity = self.identity
        return {
            "model_config": json.dumps(self.config),
            "model_instance_kind": identity.kind.removeprefix("KIND_"),
            "model_instance_name": identity.instance_name,
            "model_instance_device_id": str(identity.device_id),
            "model_repository": os.path.dirname(identity.version_dir),
            "model_version": str(identity.version),
            "model_name": identity.name,
        }

    def _execute(self) -> Any:
        try:
            return self._instance.execute
        except AttributeError:
            raise TritonModelException(
                f"Python model {self.identity.file} does not implement `execute` method."
            ) from None

    def _checked(self, requests: Sequence[InferenceRequest], returned: Any) -> Responses:
        """The result of execute, checked. Raises TritonModelException with Triton's sentences for a wrong one."""
        if self.is_decoupled:
            if returned is not None:
                raise TritonModelException(
                    f"Python model '{self.identity.instance_name}' is using the decoupled mode and the execute "
                    "function must return None."
                )
            return [None] * len(requests)
        if returned is None:
            for request in requests:
                self._answer_later(request, _NO_LIST.format(type(None)))
            return [None] * len(requests)
        if not isinstance(returned, list):
            raise TritonModelException(_NO_LIST.format(type(returned)))
        if len(returned) != len(requests):
            raise TritonModelException(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for request, response in zip(requests, returned, strict=True):
            if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                if response is not None:
                    raise TritonModelException(
                        "Expected a None object in the execute function return list for reschduled request, found "
                        f"type '{type(response)}'."
                    )
            elif not isinstance(response, InferenceResponse):
                if response is not None:
                    raise TritonModelException(_NO_RESPONSE.format(type(response)))
                self._answer_later(request, _NO_RESPONSE.format(type(None)))
        return returned

    @staticmethod
    def _let_call_models(can_call: bool) -> None:
        if runtime.current is not None:
            runtime.current.can_call_models = can_call

    def _answer_later(self, request: InferenceRequest, mistake: str) -> None:
        """Leave the answer to the request's response sender. If the model has not taken the sender and sends nothing by
        it later, returning None was a mistake, and the client gets the error `mistake`."""
        if request._sender is None and request._release_flags != TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            request.get_response_sender()._if_dropped = self.as_failure(TritonModelException(mistake))


def import_model(file: str, version_dir: str) -> ModuleType:
    """The module of a model, imported as part of the package that its directory is, so that relative and absolute
    imports of files beside it work.

    Raises whatever the module raises, InternalError if `file` is no Python file.
    """
    directory = os.path.dirname(file)
    parent = os.path.dirname(directory)
    for path in dict.fromkeys((version_dir, os.path.dirname(version_dir), directory)):
        if path not in sys.path:
            sys.path.append(path)
    package = os.path.basename(directory)
    # First in sys.path, for this one import: the directory is called "1", and another of that name may come earlier in
    # the path.
    sys.path.insert(0, parent)
    try:
        importlib.import_module(package)
    finally:
        sys.path.remove(parent)
    name = f"{package}.{os.path.splitext(os.path.basename(file))[0]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InternalError(f"'{file}' is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def describe(error: BaseException, caller: str = __file__) -> str:
    """An exception in Triton's form: type and text, then the model's frames, the innermost first. `caller` is the file
    whose code called the model: stack frames of that file, and those above them, are left out."""
    error = original(error)
    text, lines = text_of(error), [f"  {file}({line}): {function}\n" for file, line, function in _frames(error, caller)]
    if isinstance(error, TritonModelException) and not lines:
        return text
    return f"{type(error).__name__}: {text}\n\nAt:\n{''.join(lines)}" if lines else f"{type(error).__name__}: {text}"


def _frames(error: BaseException, caller: str) -> list[tuple[str, int, str]]:
    frames: list[tuple[str, int, str]] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == caller:
            frames.clear()
        elif not code.co_filename.startswith(_NO_FRAMES):
            frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError) and error.filename:  # the faulty line was never executed, so it is in no frame
        frames.append((error.filename, error.lineno or 0, (error.text or "").strip()))
    return frames[::-1]


async def _within(seconds: float, awaitable: Any) -> Any:
    import asyncio

    task = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait((task,), timeout=seconds)
    if not done:  # asyncio.run, which runs this coroutine, cancels the unfinished task
        raise TritonModelException(f"is_ready has not returned within {seconds:g} s")
    return task.result()
