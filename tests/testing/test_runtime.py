"""BLS in the test's process: sync, in threads, in coroutines, decoupled, refused; loading by a model; the log."""

import logging
from pathlib import Path

import numpy as np
import pytest

from shoal import log
from shoal.errors import InternalError
from shoal.testing import Server, StuckError
from tests.testing.models import DECOUPLED, DELAYED, DOUBLE, write_python

ROW = np.array([[1, 2]], np.float32)


def served(tmp_path: Path, code: str, config: str = "max_batch_size: 8") -> Server:
    """A model "caller" of this code, beside "double", which waits a millisecond for others."""
    write_python(tmp_path, "double", DOUBLE, DELAYED)
    write_python(tmp_path, "caller", code, config)
    return Server(tmp_path)


def test_a_call_goes_through_the_other_model_s_scheduler(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [answer(y_of(asked("double", x_of(request)).exec())) for request in requests]
"""
    with served(tmp_path, code) as server:
        assert server.infer("caller", {"X": ROW})["Y"].tolist() == [[2, 4]]
        assert [(batch.model, batch.time_ms) for batch in server.batches] == [("caller", 0), ("double", 1)]


def test_threads_of_a_model_may_call(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as pool:
            return [answer(y) for y in pool.map(lambda each: y_of(asked("double", x_of(each)).exec()), requests)]
"""
    with served(tmp_path, code, "max_batch_size: 8 dynamic_batching { }") as server:
        futures = [server.submit("caller", {"X": number * ROW}) for number in range(4)]
        assert [future.result()["Y"].tolist() for future in futures] == [[[2 * n, 4 * n]] for n in range(4)]


def test_calls_of_a_coroutine_share_a_batch(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        calls = [asked("double", x_of(request)).async_exec() for request in requests for _ in range(3)]
        return [answer(sum(map(y_of, await asyncio.gather(*calls))))]
"""
    with served(tmp_path, code) as server:
        assert server.infer("caller", {"X": ROW})["Y"].tolist() == [[6, 12]]
        assert [(batch.model, batch.rows) for batch in server.batches] == [("caller", 1), ("double", 3)]


def test_a_coroutine_may_wait_without_await(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        return [answer(y_of(asked("double", x_of(request)).exec())) for request in requests]
"""
    with served(tmp_path, code) as server:
        assert server.infer("caller", {"X": ROW})["Y"].tolist() == [[2, 4]]


def test_responses_of_a_decoupled_model_are_iterated_over(tmp_path: Path) -> None:
    repeat = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                sender.send(answer(x_of(request).as_numpy() * number))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    code = """
    def execute(self, requests):
        calls = [asked("repeat", x_of(request)).exec(decoupled=True) for request in requests]
        return [answer(sum(y_of(each) for each in call if each.output_tensors())) for call in calls]
"""
    write_python(tmp_path, "repeat", repeat, DECOUPLED)
    with served(tmp_path, code, "") as server:
        assert server.infer("caller", {"X": ROW[0]})["Y"].tolist() == [3, 6]


def test_threads_and_coroutines_may_all_wait_for_answers_of_threads(tmp_path: Path) -> None:
    repeat = """
    def execute(self, requests):
        import threading
        for request in requests:
            x = x_of(request).as_numpy().copy()
            threading.Thread(target=self.send, args=(request.get_response_sender(), x)).start()

    def send(self, sender, x):
        for number in range(100):  # more than a client may leave unread
            sender.send(answer(x))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    threads = """
    def execute(self, requests):
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(6) as pool:
            return [answer(sum(pool.map(self.ask, [request] * 6))) for request in requests]

    def ask(self, request):
        call = asked("repeat", x_of(request)).exec(decoupled=True)
        return sum(y_of(each) for each in call if each.output_tensors())
"""
    coroutines = """
    async def execute(self, requests):
        import asyncio
        return [answer(sum(await asyncio.gather(*[self.ask(each) for _ in range(5)]))) for each in requests]

    async def ask(self, request):
        call = await asked("repeat", x_of(request)).async_exec(decoupled=True)
        return sum([y_of(each) async for each in call if each.output_tensors()])
"""
    write_python(tmp_path, "repeat", repeat, DECOUPLED)
    write_python(tmp_path, "threads", threads, "")
    write_python(tmp_path, "coroutines", coroutines, "")
    with Server(tmp_path) as server:
        futures = [server.submit(model, {"X": ROW[0]}) for model in ("threads", "coroutines") * 5]
        assert [future.result()["Y"].tolist() for future in futures] == [[600, 1200], [500, 1000]] * 5


def test_a_call_that_is_cancelled_ends_for_its_model_at_once_and_the_other_model_is_told(tmp_path: Path) -> None:
    endless = """
    async def execute(self, requests):
        import asyncio
        [request] = requests
        sender = request.get_response_sender()
        while not request.is_cancelled():
            sender.send(answer(x_of(request).as_numpy()))
            await asyncio.sleep(1)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    code = """
    def execute(self, requests):
        call = asked("endless", x_of(requests[0])).exec(decoupled=True)
        first = next(call)
        call.cancel()
        [last] = call
        assert last.error().code() == pb_utils.TritonError.CANCELLED
        return [answer(y_of(first))]
"""
    write_python(tmp_path, "endless", endless, DECOUPLED)
    write_python(tmp_path, "caller", code, "")
    with Server(tmp_path) as server:
        assert server.infer("caller", {"X": ROW[0]})["Y"].tolist() == [1, 2]
        server.run_until_idle()
        assert server.now_ms == 1000


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("other", r"Failed for execute the inference request\. Model 'other' is not ready"),
        ("repeat", r"Please use 'decoupled=True' argument .* decoupled models\.'$"),
        ("narrow", "unexpected shape for input 'X'"),
    ],
)
def test_what_goes_wrong_is_a_response_with_an_error(tmp_path: Path, model: str, sentence: str) -> None:
    code = f"""
    def execute(self, requests):
        response = asked("{model}", x_of(requests[0])).exec()
        assert response.has_error()
        return [pb_utils.InferenceResponse(error=response.error())]
"""
    write_python(tmp_path, "repeat", DOUBLE, DECOUPLED)
    narrow = write_python(tmp_path, "narrow", DOUBLE).parent / "config.pbtxt"
    narrow.write_text(narrow.read_text().replace("dims: [ 2 ]", "dims: [ 1 ]"))
    with served(tmp_path, code) as server, pytest.raises(Exception, match=sentence):
        server.infer("caller", {"X": ROW})


def test_a_model_that_waits_for_itself_is_stuck_and_says_so(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [answer(y_of(asked("caller", x_of(request)).exec())) for request in requests]
"""
    with served(tmp_path, code) as server, pytest.raises(InternalError) as told:
        server.infer("caller", {"X": ROW}, request_id="7")
    assert isinstance(told.value.__cause__, StuckError)
    assert "'7' to model 'caller', which is executing it" in str(told.value)
    assert "to model 'caller', which has it in its queue" in str(told.value)


def test_models_are_loaded_and_unloaded_by_a_model(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        assert not pb_utils.is_model_ready("late")
        pb_utils.load_model("late")
        assert pb_utils.is_model_ready("late") and pb_utils.is_model_ready("late", "1")
        response = answer(y_of(asked("late", x_of(requests[0])).exec()))
        pb_utils.unload_model("late")
        assert not pb_utils.is_model_ready("late")
        try:
            pb_utils.load_model("nowhere")
        except pb_utils.TritonModelException as error:
            assert "there is no model 'nowhere'" in str(error)
        return [response]
"""
    write_python(tmp_path, "caller", code)
    write_python(tmp_path, "late", DOUBLE)
    with Server(tmp_path, ["caller"]) as server:
        assert server.infer("caller", {"X": ROW})["Y"].tolist() == [[2, 4]]


def test_a_model_is_loaded_from_files_that_a_model_has_made(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        import pathlib
        own = pathlib.Path(__file__).read_text().partition("    def execute")[0]
        source = own + "    def execute(self, requests):\\n        return [answer(5 * x_of(requests[0]).as_numpy())]"
        tensor = {"name": "X", "data_type": "TYPE_FP32", "dims": [2]}
        config = {"backend": "python", "max_batch_size": 8, "input": [tensor], "output": [{**tensor, "name": "Y"}]}
        import json
        pb_utils.load_model("made", json.dumps(config), {"file:1/model.py": source.encode()})
        return [answer(y_of(asked("made", x_of(requests[0])).exec()))]
"""
    write_python(tmp_path, "caller", code)
    with Server(tmp_path) as server:
        assert server.infer("caller", {"X": ROW})["Y"].tolist() == [[5, 10]]


def test_the_log_of_a_model_is_a_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = """
    def execute(self, requests):
        pb_utils.Logger.log_warn("shoal ahead")
        pb_utils.Logger.log_verbose("depth 3")
        pb_utils.Logger.log("without a level")
        return [answer(x_of(request).as_numpy()) for request in requests]
"""
    version = write_python(tmp_path, "logs", code)
    with Server(tmp_path) as server, caplog.at_level(log.verbose(1), "shoal.model"):
        server.infer("logs", {"X": ROW})
    record, verbose, unknown = [each for each in caplog.records if each.name == "shoal.model"]
    assert (verbose.levelno, unknown.levelno) == (log.verbose(1), logging.INFO)  # as in a worker
    assert (record.levelname, record.getMessage(), record.pathname) == (
        "WARNING", "shoal ahead", str(version / "model.py"),
    )  # fmt: skip
