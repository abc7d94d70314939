"""model.py: how a user's class is imported, completed, initialized and asked; without a worker."""

import asyncio
import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton_python_backend_utils import InferenceRequest, InferenceResponse, Tensor, TritonModelException

from shoal.errors import InternalError
from shoal.process import take_signal
from shoal.workers.backends.python.model import IS_READY_S, InstanceIdentity, PythonModel, describe, import_model
from shoal.workers.backends.python.raised import NoExceptionError

CONFIG: dict[str, Any] = {"name": "m", "max_batch_size": 0, "input": [], "output": [], "parameters": {}}
Write = Callable[..., PythonModel]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """(the text of a model.py, other files by name) → the model."""
    path, modules = list(sys.path), set(sys.modules)

    def make(text: str, files: dict[str, str] | None = None, config: dict[str, Any] | None = None) -> PythonModel:
        directory = tmp_path / "m" / "1"
        for name, content in {"model.py": text, **(files or {})}.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(textwrap.dedent(content))
        identity = InstanceIdentity("m", 1, "m_0_0", str(directory), str(directory / "model.py"))
        return PythonModel(identity, {**CONFIG, **(config or {})})

    yield make
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def request() -> InferenceRequest:
    return InferenceRequest(inputs=[], requested_output_names=[], model_name="m")


def model_of(execute: str) -> str:
    """A model whose execute has this body."""
    body = textwrap.indent(textwrap.dedent(execute).strip(), " " * 8)
    head = "import triton_python_backend_utils as pb\nclass TritonPythonModel:\n    def execute(self, requests):\n"
    return f"{head}{body}\n"


# -- forks --


def test_a_process_that_was_forked_before_may_use_the_model(write: Write) -> None:
    """As a test's process may, where the model was loaded before it was forked."""
    model = write(model_of("return [pb.InferenceResponse()]"))
    model.load()
    child = os.fork()
    if child == 0:
        try:
            os._exit(40 + len(model.execute([request()])))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41


# -- importing --


def test_siblings_are_imported_in_both_ways(write: Write) -> None:
    model = write(
        """
        import beside
        import above
        from .beside import WORD
        class TritonPythonModel:
            def initialize(self, args):
                self.words = (beside.WORD, above.WORD, WORD, __name__, __package__)
        """,
        {"beside.py": "WORD = 'beside'", "../above.py": "WORD = 'above'"},
    )
    model.load()
    assert model._instance.words == ("beside", "above", "beside", "1.model", "1")


def test_a_model_of_a_python_based_backend_lies_elsewhere(write: Write, tmp_path: Path) -> None:
    write("", {"settings.py": "WORD = 'of the model'"})
    backend = tmp_path / "backends" / "mine"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text("import settings\n")
    module = import_model(str(backend / "model.py"), str(tmp_path / "m" / "1"))
    assert (module.__name__, module.settings.WORD) == ("mine.model", "of the model")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'\n\nAt:\n  "),
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        (
            "class TritonPythonModel:\n    def initialize(self, args): 1 / 0",
            "ZeroDivisionError: division by zero\n\nAt:",
        ),
    ],
)
def test_what_goes_wrong_at_load_is_the_reason(write: Write, text: str, sentence: str) -> None:
    with pytest.raises(InternalError) as caught:
        write(text).load()
    assert str(caught.value).startswith(sentence)


def test_initialize_is_told_everything_in_strings(write: Write, tmp_path: Path) -> None:
    model = write("class TritonPythonModel:\n    def initialize(self, args): self.args = args")
    model.load()
    args = model._instance.args
    assert json.loads(args.pop("model_config")) == model.config
    assert args == {
        "model_instance_kind": "CPU", "model_instance_name": "m_0_0", "model_instance_device_id": "0",
        "model_repository": str(tmp_path / "m"), "model_version": "1", "model_name": "m",
    }  # fmt: skip


# -- auto_complete_config --


def test_the_configuration_is_completed_before_load(write: Write) -> None:
    model = write(
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(auto_complete_model_config):
                auto_complete_model_config.set_max_batch_size(4)
                auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
                return auto_complete_model_config
        """
    )
    completed = model.auto_complete()
    assert (completed["max_batch_size"], model.config["max_batch_size"], model.is_decoupled) == (4, 0, False)
    model.configure(completed)
    assert model.is_decoupled


def test_a_model_without_the_hook_leaves_it_as_it_is(write: Write) -> None:
    model = write("class TritonPythonModel: pass")
    assert model.auto_complete() == model.config


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return 5", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."),
        ("config.add_input({'name': 'X'})", "ValueError: input 'X' in auto-complete-config function for model 'm' is "
                                            "missing 'data_type' property.\n\nAt:\n  "),
    ],
)  # fmt: skip
def test_a_hook_that_fails(write: Write, body: str, sentence: str) -> None:
    text = f"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        {body}\n"
    with pytest.raises(InternalError) as caught:
        write(text).auto_complete()
    assert str(caught.value).startswith(sentence)


# -- execute --


def test_execute_returns_responses(write: Write) -> None:
    model = write(model_of("return [pb.InferenceResponse() for _ in requests]"))
    model.load()
    (response,) = model.execute([request()])
    assert isinstance(response, InferenceResponse)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return {}", "Expected a list in the execute return, found type '<class 'dict'>'."),
        (
            "return [5]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
        ),
        (
            "requests[0].set_release_flags(2)\nreturn [pb.InferenceResponse()]",
            "Expected a None object in the execute function return list for reschduled request, found type "
            "'<class 'triton_python_backend_utils.response.InferenceResponse'>'.",
        ),
    ],
)
def test_what_execute_must_not_return(write: Write, body: str, sentence: str) -> None:
    model = write(model_of(body))
    model.load()
    with pytest.raises(TritonModelException) as caught:
        model.execute([request()])
    failure = model.as_failure(caught.value)
    assert str(failure) == f"Failed to process the request(s) for model 'm_0_0', message: {sentence}"


def test_a_decoupled_model_returns_nothing(write: Write) -> None:
    model = write(model_of("return []"), config={"model_transaction_policy": {"decoupled": True}})
    model.load()
    with pytest.raises(TritonModelException) as caught:
        model.execute([request()])
    assert str(caught.value) == (
        "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."
    )


def test_a_model_without_execute(write: Write) -> None:
    model = write("class TritonPythonModel: pass")
    model.load()
    with pytest.raises(TritonModelException) as caught:
        model.execute([request()])
    assert str(caught.value) == f"Python model {model.identity.file} does not implement `execute` method."


def test_an_exception_names_the_models_frames_from_the_inside(write: Write) -> None:
    model = write(
        """
        import triton_python_backend_utils as pb
        class TritonPythonModel:
            def execute(self, requests):
                self.inner()
            def inner(self):
                pb.Tensor("", [])
        """
    )
    model.load()
    with pytest.raises(TritonModelException) as caught:
        model.execute([request()])
    file = model.identity.file
    assert describe(caught.value) == (
        "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n"
        f"  {file}(7): inner\n  {file}(5): execute\n"
    )


NO_EXCEPTIONS = [
    ("asyncio.CancelledError('late')", "CancelledError: late"),
    ("GeneratorExit", "GeneratorExit: "),
    ("KeyboardInterrupt", "KeyboardInterrupt: "),
    ("type('OwnError', (BaseException,), {})", "OwnError: "),
]
METHODS = {
    "execute": "def execute(self, requests)",
    "coroutine": "async def execute(self, requests)",
    "load": "def initialize(self, args)",
    "end_sequence": "def end_sequence(self, correlation_id)",
    "is_ready": "def is_ready(self)",
    "finalize": "def finalize(self)",
}


def call(model: PythonModel, method: str) -> None:
    """Call a method of a model whose only method is this one."""
    if method != "load":
        model.load()
    if method == "execute":
        model.execute([request()])
    elif method == "coroutine":
        asyncio.run(model.execute_async([request()]))
    elif method == "end_sequence":
        model.end_sequence(1)
    else:
        getattr(model, method)()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("raised", "sentence"), NO_EXCEPTIONS)
def test_what_is_no_exception_is_raised_as_one(
    write: Write, monkeypatch: pytest.MonkeyPatch, method: str, raised: str, sentence: str
) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _number: take_signal)  # as in a worker
    model = write(f"import asyncio\nclass TritonPythonModel:\n    {METHODS[method]}:\n        raise {raised}")
    with pytest.raises((NoExceptionError, InternalError)) as caught:
        call(model, method)
    said = str(caught.value) if caught.type is InternalError else describe(caught.value)
    assert said.startswith(sentence)
    assert f"At:\n  {model.identity.file}(4): " in said


def test_a_model_ends_its_process_by_sys_exit_and_a_terminal_by_ctrl_c(write: Write) -> None:
    for raised in (SystemExit, KeyboardInterrupt):
        model = write(model_of(f"raise {raised.__name__}"))
        model.load()
        with pytest.raises(raised):
            model.execute([request()])


# -- is_ready and finalize --


@pytest.mark.parametrize(
    ("method", "is_ready"),
    [("", True), ("def is_ready(self): return False", False), ("async def is_ready(self): return True", True)],
)
def test_a_model_says_whether_it_is_ready(write: Write, method: str, is_ready: bool) -> None:
    model = write(f"class TritonPythonModel:\n    x = 1\n    {method}")
    model.load()
    assert model.is_ready() is is_ready
    assert model.has_ready_check is bool(method)


def test_is_ready_must_be_a_bool(write: Write) -> None:
    model = write("class TritonPythonModel:\n    def is_ready(self): return 1")
    model.load()
    with pytest.raises(TritonModelException, match="is_ready must return a bool"):
        model.is_ready()


def test_a_coroutine_has_five_seconds(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert IS_READY_S == 5.0
    monkeypatch.setattr("shoal.workers.backends.python.model.IS_READY_S", 0.0)
    model = write(
        "import asyncio\nclass TritonPythonModel:\n    async def is_ready(self): await asyncio.Event().wait()"
    )
    model.load()
    with pytest.raises(TritonModelException) as caught:
        model.is_ready()
    assert describe(caught.value) == "is_ready has not returned within 0 s"


def test_finalize_is_optional_and_may_fail(write: Write) -> None:
    model = write("class TritonPythonModel: pass")
    model.load()
    model.finalize()
    assert model._instance is None
    model = write("class TritonPythonModel:\n    def finalize(self): raise OSError('late')")
    model.load()
    with pytest.raises(InternalError, match="OSError: late"):
        model.finalize()


def test_tensors_reach_a_model_in_process(write: Write) -> None:
    model = write(
        model_of("return [pb.InferenceResponse([pb.Tensor('Y', r.inputs()[0].as_numpy() * 2)]) for r in requests]")
    )
    model.load()
    given = InferenceRequest(inputs=[Tensor("X", np.arange(3))], requested_output_names=["Y"], model_name="m")
    (response,) = model.execute([given])
    assert response is not None
    assert response.output_tensors()[0].as_numpy().tolist() == [0, 2, 4]
