"""backend.py and requests.py: batches through the real loop of a worker, with models as users write them."""

import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from triton_python_backend_utils import Tensor

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import ModelIO
from shoal.model_config.signature import Signature
from shoal.workers.backends.backend import BackendModel
from shoal.workers.backends.python.backend import PythonBackend
from shoal.workers.backends.python.bls import NO_PARENTS, current_parents
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.loop import Loop
from tests.workers.worker_harness import CPU, Batcher, model_config, strings, tensor_config

DONE, RESPONSE, READY, RESCHEDULE = 7, 12, 13, 14
INPUTS = [tensor_config("X", "TYPE_FP32", [-1])]
OUTPUTS = [tensor_config("Y", "TYPE_FP32", [-1]), tensor_config("Z", "TYPE_STRING", [-1])]
DEADLINE_S = 10.0
HEAD = "import asyncio, json, threading\nimport numpy as np\nimport triton_python_backend_utils as pb\n"
Served = tuple[Loop, PythonBackend]
Serve = Callable[..., Served]


@pytest.fixture
def serve(batcher: Batcher, tmp_path: Path) -> Serve:
    """(the body of execute, whether it is a coroutine, fields of the configuration) → the loop of a loaded model."""

    def make(
        body: str, *, prefix: str = "", config: dict[str, Any] | None = None, methods: str = "", **parameters: str
    ) -> Served:
        directory = tmp_path / "m" / "1"
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "model.py"
        file.write_text(
            f"{HEAD}class TritonPythonModel:\n{textwrap.indent(textwrap.dedent(methods), '    ')}\n"
            f"    {prefix}def execute(self, requests):\n{textwrap.indent(textwrap.dedent(body).strip(), '        ')}\n"
        )
        made = model_config(
            INPUTS, OUTPUTS, max_batch_size=0, backend="python", parameters=parameters, **(config or {})
        )
        backend = PythonBackend()
        backend.load(BackendModel("m", 1, "m_0_0", str(directory), str(file), made, {}), CPU)
        return Loop(backend, Signature.from_config(made), "m_0_0", batcher.memory()), backend

    return make


def x(*values: float) -> list[tuple[str, str, Any]]:
    return [("X", "FP32", np.array(values, np.float32))]


class Heard:
    """What the worker has said since the last time, by kind; waits for threads of the model's."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.records: list[tuple[int, ...]] = []

    def wait(self, *kinds: int) -> list[tuple[int, ...]]:
        """The records, when all of these kinds have come. READY counts where it is named: an answer may be faster."""
        end = time.monotonic() + DEADLINE_S
        while sorted(record[0] for record in self.records if record[0] in kinds or record[0] != READY) != sorted(kinds):
            self.records += [record for record in self._batcher.reader.drain() if record[0] != 8]
            assert time.monotonic() < end, self.records
        return self.records

    def answers(self, *kinds: int) -> list[tuple[int, Any]]:
        """(status, outputs or the sentence) of each record that is an answer, in their order."""
        return [
            self._open(record)
            for record in self.wait(*kinds)
            if record[0] in (DONE, RESPONSE) and (record[3] or record[4])
        ]

    def _open(self, record: tuple[int, ...]) -> tuple[int, Any]:
        _, _, _, status, ref, span, *_ = record
        block = self._batcher.results.open(ref)
        assert block is not None
        header = bytes(block[span >> 32 : (span >> 32) + (span & 0xFFFFFFFF)])
        if status:
            return status, header.decode()
        outputs, _ = msgpack.unpackb(header)
        return 0, {name: bytes(block[offset : offset + nbytes]) for name, _, _, offset, nbytes in outputs}


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


@pytest.fixture
def ask(serve: Serve, batcher: Batcher) -> Iterator[Callable[..., list[tuple[int, Any]]]]:
    """(what `serve` takes) → the answers to one request with X = [1]."""
    backends = []

    def answers(body: str, **options: Any) -> list[tuple[int, Any]]:
        loop, backend = serve(body, **options)
        backends.append(backend)
        batcher.send(batcher.request(x(1)))
        loop.step()
        return Heard(batcher).answers(DONE)

    yield answers
    for backend in backends:
        backend.unload()


DOUBLE = "return [pb.InferenceResponse([pb.Tensor('Y', r.inputs()[0].as_numpy() * 2)]) for r in requests]"


def test_a_batch_is_answered(serve: Serve, batcher: Batcher) -> None:
    loop, _ = serve(DOUBLE)
    batcher.send(batcher.request(x(1, 2)))
    loop.step()
    assert Heard(batcher).answers(DONE) == [(0, {"Y": floats(2, 4)})]


def test_outputs_not_requested_or_not_configured_are_dropped(serve: Serve, batcher: Batcher) -> None:
    loop, _ = serve(
        """
        y, z, other = (pb.Tensor(name, np.array([1], np.float32)) for name in ("Y", "Z", "other"))
        return [pb.InferenceResponse([y, z, other])]
        """
    )
    batcher.send(batcher.request(x(1), outputs=["Z"]))
    loop.step()
    assert Heard(batcher).answers(DONE) == [(0, {"Z": floats(1)})]  # neither name nor datatype is checked


def test_a_request_says_what_the_client_said(serve: Serve, batcher: Batcher) -> None:
    loop, _ = serve(
        """
        r = requests[0]
        said = [r.request_id(), sorted(r.requested_output_names()), json.loads(r.parameters()), r.correlation_id(),
                r.flags(), r.timeout(), r.is_cancelled(), [t.name() for t in r.inputs()]]
        return [pb.InferenceResponse([pb.Tensor("Z", np.array([json.dumps(said)], object))])]
        """
    )
    batcher.send(batcher.request(x(1), request_id="a"))
    loop.step()
    expected = b'["a", ["Y", "Z"], {}, 0, 0, 0, false, ["X"]]'
    assert Heard(batcher).answers(DONE) == [(0, {"Z": strings(expected)})]


def test_each_request_has_its_own_error(ask: Any) -> None:
    assert ask("return [pb.InferenceResponse(error=pb.TritonError('no', pb.TritonError.UNSUPPORTED))]") == [(6, "no")]


def test_an_exception_is_the_answer(ask: Any, tmp_path: Path) -> None:
    file = tmp_path / "m" / "1" / "model.py"
    assert ask("return requests[5]") == [
        (
            2,
            "Failed to process the request(s) for model 'm_0_0', message: IndexError: list index out of range\n\nAt:\n"
            f"  {file}(7): execute\n",
        )
    ]


# -- inputs that are written to --


WRITES = """
x = requests[0].inputs()[0].as_numpy()
x[0] = 5
return [pb.InferenceResponse([pb.Tensor("Y", x)])]
"""


def test_a_model_that_writes_into_its_inputs_gets_copies_from_then_on(serve: Serve, batcher: Batcher) -> None:
    loop, backend = serve(WRITES)
    for _ in range(2):
        batcher.send(batcher.request(x(1, 2)))
        loop.step()
        assert Heard(batcher).answers(DONE) == [(0, {"Y": floats(5, 2)})]
    assert backend._has_copies


def test_it_can_be_said_beforehand(serve: Serve, batcher: Batcher) -> None:
    _, backend = serve(WRITES, WRITABLE_INPUTS="yes")
    assert backend._has_copies


@pytest.mark.parametrize("key", ["FORCE_CPU_ONLY_INPUT_TENSORS", "WRITABLE_INPUTS"])
def test_flags_are_yes_or_no(serve: Serve, key: str) -> None:
    serve(DOUBLE, **{key: "no"})
    with pytest.raises(InvalidArgumentError, match=f"Incorrect value for {key}: 'maybe'"):
        serve(DOUBLE, **{key: "maybe"})


# -- senders --


def test_a_plain_model_may_answer_through_a_sender(ask: Any) -> None:
    answers = ask(
        """
        sender = requests[0].get_response_sender()
        response = pb.InferenceResponse([pb.Tensor("Y", np.array([3], np.float32))])
        sender.send(response, pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return [None]
        """
    )
    assert answers == [(0, {"Y": floats(3)})]


def test_a_request_goes_back_into_its_queue(serve: Serve, batcher: Batcher) -> None:
    loop, _ = serve("requests[0].set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [None]")
    batcher.send(batcher.request(x(1)))
    loop.step()
    ((_, key, *_),) = Heard(batcher).wait(RESCHEDULE)
    assert key == 1


DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


def test_a_decoupled_model_answers_when_it_likes(serve: Serve, batcher: Batcher) -> None:
    loop, _ = serve(
        """
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()
        """,
        methods="""
        go = threading.Event()
        def answer(self, request):
            self.go.wait()
            sender = request.get_response_sender()
            for n in range(2):
                sender.send(pb.InferenceResponse([pb.Tensor("Y", request.inputs()[0].as_numpy() + n)]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        config=DECOUPLED,
    )
    batcher.send(batcher.request(x(1)))
    loop.step()
    heard = Heard(batcher)
    heard.wait(READY)  # the instance can take the next one
    loop._backend._model._instance.go.set()  # type: ignore[attr-defined]
    assert heard.answers(READY, RESPONSE, RESPONSE, DONE) == [(0, {"Y": floats(1)}), (0, {"Y": floats(2)})]


# -- coroutines --


def test_coroutines_overlap(serve: Serve, batcher: Batcher) -> None:
    loop, backend = serve(
        """
        self.waiting.append(asyncio.Event())
        if len(self.waiting) == 2:
            for event in self.waiting:
                event.set()
        await self.waiting[-1].wait()  # nothing is answered before the second has come
        return [pb.InferenceResponse([pb.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
        """,
        prefix="async ",
        methods="waiting = []",
    )
    batcher.send(batcher.request(x(1)), batch=1)
    batcher.send(batcher.request(x(2)), batch=2)
    loop.step()
    answers = Heard(batcher).answers(DONE, DONE)
    assert sorted(outputs["Y"] for _, outputs in answers) == sorted([floats(1), floats(2)])
    backend.unload()


def test_a_coroutine_that_ends_by_what_is_no_exception_fails_its_requests(serve: Serve, batcher: Batcher) -> None:
    loop, backend = serve(
        """
        class Stop(BaseException): ...
        raise [Stop, asyncio.CancelledError][int(requests[0].inputs()[0].as_numpy()[0])]
        """,
        prefix="async ",
    )
    for number, name in ((0, "Stop"), (1, "CancelledError")):
        batcher.send(batcher.request(x(number)), batch=number + 1)
        loop.step()
        ((status, sentence),) = Heard(batcher).answers(DONE)
        assert (status, f"message: {name}: " in sentence) == (2, True)
    backend.unload()


def test_no_request_is_the_parent_of_what_comes_after_it(serve: Serve, batcher: Batcher) -> None:
    loop, backend = serve(DOUBLE, prefix="async ")
    batcher.send(batcher.request(x(1)))
    loop.step()
    assert current_parents.get() is NO_PARENTS
    Heard(batcher).wait(DONE)
    backend.unload()


def test_calls_end_with_an_execution_that_ends_in_any_way(serve: Serve, batcher: Batcher) -> None:
    loop, _ = serve("raise SystemExit(3)")
    batcher.send(batcher.request(x(1)))
    with pytest.raises(SystemExit):
        loop.step()
    assert current_parents.get() is NO_PARENTS


def test_unloading_ends_a_coroutine_that_hangs(serve: Serve, batcher: Batcher, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.workers.backends.python.backend.UNLOAD_WAIT_S", 0.0)
    loop, backend = serve("await asyncio.Event().wait()", prefix="async ")
    batcher.send(batcher.request(x(1)))
    loop.step()
    backend.unload()
    ((status, sentence),) = Heard(batcher).answers(READY, DONE)
    assert (status, sentence) == (5, "model instance 'm_0_0' is unloaded")


def test_describe_gives_what_the_model_has_made_of_its_configuration(serve: Serve, tmp_path: Path) -> None:
    serve(DOUBLE)
    directory = tmp_path / "m" / "1"
    config = model_config(INPUTS, OUTPUTS, max_batch_size=0, backend="python")
    model_io = PythonBackend().describe(
        BackendModel("m", 1, "m_0_0", str(directory), str(directory / "model.py"), config, {}), CPU
    )
    assert model_io == ModelIO((), (), config)


# -- what fails a request --

NO_TEXT = """
class Mute(Exception):
    def __str__(self):
        raise self
raise Mute
"""
CANNOT_BE_SENT = """
class Broken(pb.InferenceResponse):
    def error(self):
        raise OverflowError("too large")
return [Broken()]
"""


@pytest.mark.parametrize(
    ("body", "options", "sentence"),
    [
        (r"return [pb.InferenceResponse([pb.Tensor('Z', np.array(['\ud800'], object))])]", {},
         "that is no BYTES tensor: 'utf-8' codec can't encode"),
        # What has answered already is not run again with copies of its inputs.
        ("requests[0].get_response_sender()\n" + WRITES, {}, "read-only"),
        ("return []", {"config": DECOUPLED}, "is using the decoupled mode and the execute function must return None."),
        ("pass", {"config": DECOUPLED}, "The model dropped the response sender of a request without an answer."),
        ("await asyncio.sleep(0)\nraise KeyError('x')", {"prefix": "async "}, "message: KeyError: 'x'\n\nAt:\n"),
        (CANNOT_BE_SENT, {}, "OverflowError: too large"),
        (CANNOT_BE_SENT, {"prefix": "async "}, "OverflowError: too large"),
        (NO_TEXT, {}, "Mute: <exception str() failed>"),
        (NO_TEXT, {"prefix": "async "}, "Mute: <exception str() failed>"),
    ],
    ids=["no-text", "answered-already", "decoupled-returns", "sender-dropped", "coroutine-raises", "cannot-be-sent",
         "cannot-be-sent-by-a-coroutine", "exception-without-a-text", "exception-of-a-coroutine-without-a-text"],
)  # fmt: skip
def test_a_request_fails(ask: Any, body: str, options: dict[str, Any], sentence: str) -> None:
    ((status, said),) = ask(body, **options)
    assert (status, sentence in said) == (2, True)


def test_calls_of_all_instances_of_a_process_use_the_first_ones_pool(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from one place in the star, whose gone segments only that instance's regions hear of."""
    monkeypatch.setattr(Tensor, "_outgoing", Tensor._outgoing)
    _, first = serve("return []")
    other, version = first.of_another_thread(), tmp_path / "m" / "1"
    made = model_config(INPUTS, OUTPUTS, max_batch_size=0, backend="python")
    other.load(BackendModel("m", 1, "m_0_1", str(version), str(version / "model.py"), made, {}), CPU)
    pools = [GpuPool(0, 4096), GpuPool(0, 4096)]
    for backend, pool in zip((first, other), pools, strict=True):
        backend.keep_outputs_on_gpu(pool, CudaRegions)
    assert other._runtime is first._runtime
    assert first._runtime.gpu is not None
    assert first._runtime.gpu._pool is pools[0]
