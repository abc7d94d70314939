"""Python models in the test's process: execute in its three kinds, senders, errors, and what is around a model."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import CancelledError, InternalError, InvalidArgumentError, UnavailableError
from shoal.testing import Server, StuckError
from shoal.testing.star import SimulatedStar
from tests.testing.models import DECOUPLED, DOUBLE, write_python

ROW = np.array([[1, 2]], np.float32)


def test_a_model_runs_in_the_thread_of_the_test_and_may_write_into_its_inputs(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        import threading
        self.thread = threading.get_ident()
        responses = []
        for request in requests:
            x = x_of(request).as_numpy()
            x += self.thread == int(self.expected)
            responses.append(answer(x))
        return responses

    def initialize(self, args):
        self.expected = args["model_repository"].rpartition("_")[2]
"""
    write_python(tmp_path, f"in_{threading.get_ident()}", code)
    with Server(tmp_path) as server:
        assert server.infer(server.models[0], {"X": ROW})["Y"].tolist() == [[2, 3]]


def test_requests_of_one_batch_are_executed_together(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [answer(x_of(request).as_numpy() * len(requests)) for request in requests]
"""
    write_python(tmp_path, "count", code, "max_batch_size: 8 dynamic_batching { }")
    with Server(tmp_path) as server:
        futures = [server.submit("count", {"X": ROW}) for _ in range(3)]
        assert [future.result()["Y"].tolist() for future in futures] == [[[3, 6]]] * 3


def test_what_a_client_says_reaches_the_model(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        [request] = requests
        said = {
            "id": request.request_id(),
            "parameters": request.parameters(),
            "sequence": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "outputs": ",".join(request.requested_output_names()),
        }
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x_of(request).as_numpy())], parameters=said)]
"""
    write_python(tmp_path, "told", code)
    with Server(tmp_path) as server:
        response = server.infer(
            "told", {"X": ROW}, request_id="a", parameters={"n": 1}, sequence_id=7, sequence_start=True, timeout_us=9
        )
        assert response.parameters == {
            "id": "a", "parameters": '{"n":1}', "sequence": 7, "flags": 1, "timeout": 9, "outputs": "Y",
        }  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="reserved for Triton usage"):
            server.infer("told", {"X": ROW}, parameters={"triton_x": 1})


RAISES = """
    def execute(self, requests):
        raise KeyError("no such fish")
"""


def test_an_exception_is_told_as_to_a_client_and_is_its_cause(tmp_path: Path) -> None:
    version = write_python(tmp_path, "raises", RAISES)
    with Server(tmp_path) as server, pytest.raises(InternalError) as told:
        server.infer("raises", {"X": ROW})
    sentence = str(told.value)
    assert sentence.startswith(
        "Failed to process the request(s) for model 'raises_0', message: KeyError: 'no such fish'\n\nAt:\n"
        f"  {version}/model.py("
    )
    assert sentence.count("\n") == 4, "the model's own frame and no other"
    assert isinstance(told.value.__cause__, KeyError)


def test_an_exception_is_raised_as_it_is_where_that_is_wanted(tmp_path: Path) -> None:
    write_python(tmp_path, "raises", RAISES)
    with Server(tmp_path, raise_errors=True) as server, pytest.raises(KeyError, match="no such fish"):
        server.infer("raises", {"X": ROW})


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_a_model_raises_is_the_cause_though_it_is_no_exception(tmp_path: Path, kind: str) -> None:
    body = "(self, *_):\n        import asyncio\n        raise asyncio.CancelledError('late')\n"
    write_python(tmp_path / "served", "gives_up", f"\n    {kind} execute{body}")
    write_python(tmp_path / "broken", "gives_up", f"\n    def initialize{body}")
    with Server(tmp_path / "served") as server, pytest.raises(InternalError, match="CancelledError: late") as told:
        server.infer("gives_up", {"X": ROW})
    assert type(told.value.__cause__) is asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError, match="late"):
        Server(tmp_path / "broken", raise_errors=True)


def test_pytest_fail_in_a_model_ends_the_test(tmp_path: Path) -> None:
    """Limits of a test's time call it from a signal's handler, wherever the model is."""
    code = """
    def execute(self, requests):
        import pytest
        pytest.fail("late")
"""
    version = write_python(tmp_path, "fails", code)
    with Server(tmp_path) as server, pytest.raises(pytest.fail.Exception, match="late"):
        server.infer("fails", {"X": ROW})
    (version / "model.py").write_text("import pytest\n\npytest.skip('no weights', allow_module_level=True)\n")
    with pytest.raises(pytest.skip.Exception, match="no weights"):
        Server(tmp_path)


def test_a_model_that_cannot_be_initialized_is_not_loaded(tmp_path: Path) -> None:
    write_python(tmp_path, "broken", "\n    def initialize(self, args):\n        raise OSError('no weights')\n")
    with pytest.raises(InternalError, match="OSError: no weights"):
        Server(tmp_path)
    with pytest.raises(OSError, match="no weights"):
        Server(tmp_path, raise_errors=True)


def test_one_request_of_a_batch_may_fail(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        error = pb_utils.TritonError("too small", pb_utils.TritonError.INVALID_ARG)
        return [
            answer(x.as_numpy()) if x.as_numpy().min() >= 0 else pb_utils.InferenceResponse(error=error)
            for x in map(x_of, requests)
        ]
"""
    write_python(tmp_path, "picky", code, "max_batch_size: 8 dynamic_batching { }")
    with Server(tmp_path) as server:
        good, bad = server.submit("picky", {"X": ROW}), server.submit("picky", {"X": -ROW})
        assert good.result()["Y"].tolist() == [[1, 2]]
        with pytest.raises(InvalidArgumentError, match="too small"):
            bad.result()


THREADS = """
    def execute(self, requests):
        import threading
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(), x_of(request).as_numpy())).start()

    def send(self, sender, x):
        for number in range(3):
            sender.send(answer(x * number))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_decoupled_model_answers_from_a_thread(tmp_path: Path) -> None:
    write_python(tmp_path, "repeat", THREADS, DECOUPLED)
    with Server(tmp_path) as server:
        assert [each["Y"].tolist() for each in server.stream("repeat", {"X": ROW[0]})] == [[0, 0], [1, 2], [2, 4]]
        with pytest.raises(AssertionError, match="sent 3 responses"):
            server.infer("repeat", {"X": ROW[0]})


def test_an_error_in_the_middle_of_a_stream_follows_what_came_before(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(answer(x_of(request).as_numpy()))
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("tired")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_python(tmp_path, "tired", code, DECOUPLED)
    with Server(tmp_path) as server:
        future = server.submit("tired", {"X": ROW[0]})
        with pytest.raises(InternalError, match="tired"):
            future.results()
        assert len(future.responses) == 1


def test_a_running_request_whose_client_has_gone_is_cancelled(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        for request in requests:
            while not request.is_cancelled():
                await asyncio.sleep(1)
        error = pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
    write_python(tmp_path, "patient", code)
    with Server(tmp_path) as server:
        future = server.submit("patient", {"X": ROW})
        server.advance(seconds=100)
        assert not future.done
        future.cancel()
        server.advance(seconds=1)
        with pytest.raises(CancelledError, match="gone"):
            future.result()


def test_coroutines_overlap_on_the_clock_of_the_test(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        await asyncio.sleep(60)
        return [answer(x_of(request).as_numpy()) for request in requests]
"""
    write_python(tmp_path, "slow", code)
    with Server(tmp_path) as server:
        futures = [server.submit("slow", {"X": ROW}) for _ in range(3)]
        server.advance(seconds=59)
        assert not any(future.done for future in futures)
        server.advance(seconds=1)
        assert all(future.done for future in futures)


def test_a_coroutine_waits_for_a_thread_and_for_a_socket(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio, socket, threading
        here, there = socket.socketpair()
        here.setblocking(False)
        with here, there:
            threading.Thread(target=there.send, args=(b"7",)).start()
            received = await asyncio.get_running_loop().sock_recv(here, 1)
        factor = await asyncio.to_thread(int, received)
        return [answer(x_of(request).as_numpy() * factor) for request in requests]
"""
    write_python(tmp_path, "waits", code)
    with Server(tmp_path) as server:
        assert server.infer("waits", {"X": ROW})["Y"].tolist() == [[7, 14]]


def test_a_request_goes_back_into_its_queue(tmp_path: Path) -> None:
    code = """
    seen = False

    def execute(self, requests):
        [request] = requests
        if not self.seen:
            self.seen = True
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [None]
        return [answer(x_of(request).as_numpy())]
"""
    write_python(tmp_path, "again", code)
    with Server(tmp_path) as server:
        assert server.infer("again", {"X": ROW})["Y"].tolist() == [[1, 2]]
        assert len(server.batches) == 2


def test_a_sender_that_is_kept_and_never_used_is_no_hang(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        self.kept = [request.get_response_sender() for request in requests]
"""
    write_python(tmp_path, "mute", code, DECOUPLED)
    with Server(tmp_path, patience_s=0.05) as server:
        future = server.submit("mute", {"X": ROW[0]}, request_id="7")
        with pytest.raises(StuckError, match=r"nothing has happened for 0.05 s.*'7' to model 'mute'"):
            future.result()


def test_an_output_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        return [answer(np.array([["\\ud800", "x"]], object)) for _ in requests]
"""
    version = write_python(tmp_path, "numbers", code)
    config = version.parent / "config.pbtxt"
    config.write_text(config.read_text().replace('"Y" data_type: TYPE_FP32', '"Y" data_type: TYPE_STRING'))
    with Server(tmp_path) as server, pytest.raises(InternalError, match="output 'Y' that is no BYTES tensor"):
        server.infer("numbers", {"X": ROW})


def test_what_coroutines_still_have_fails_when_the_model_is_unloaded(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        await asyncio.sleep(60)
"""
    write_python(tmp_path, "slow", code)
    with Server(tmp_path) as server:
        future = server.submit("slow", {"X": ROW})
        server.advance(seconds=1)
        server.unload("slow")
        with pytest.raises(UnavailableError, match="is not at ready state"):
            future.result()
        server.run_until_idle()


def test_auto_complete_config_completes_the_configuration(tmp_path: Path) -> None:
    code = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config
"""
    write_python(tmp_path, "complete", code + DOUBLE)
    (tmp_path / "complete" / "config.pbtxt").unlink()
    with Server(tmp_path) as server:
        assert server.config("complete")["max_batch_size"] == 4
        assert server.infer("complete", {"X": ROW})["Y"].tolist() == [[2, 4]]


def test_each_instance_has_modules_of_its_own(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        import factor
        factor.uses += 1
        return [answer(x_of(request).as_numpy() * factor.FACTOR * factor.uses) for request in requests]
"""
    for name, factor in (("two", 2), ("three", 3)):
        version = write_python(tmp_path, name, code, "max_batch_size: 8 instance_group [ { count: 2 kind: KIND_CPU } ]")
        (version / "factor.py").write_text(f"FACTOR = {factor}\nuses = 0\n")
    with Server(tmp_path) as server:
        first = [server.infer(name, {"X": ROW})["Y"].tolist() for name in ("two", "three", "two", "three")]
        assert first == [[[2, 4]], [[3, 6]], [[2, 4]], [[3, 6]]]
        assert server.infer("two", {"X": ROW})["Y"].tolist() == [[4, 8]]


def test_a_model_tidies_up_when_the_server_ends(tmp_path: Path) -> None:
    code = f"""
    def finalize(self):
        open({str(tmp_path / "finalized")!r}, "w").close()
"""
    write_python(tmp_path / "models", "tidy", DOUBLE + code)
    with Server(tmp_path / "models"):
        assert not (tmp_path / "finalized").exists()
    assert (tmp_path / "finalized").exists()


def test_a_sender_that_is_dropped_fails_its_request(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            request.get_response_sender()
"""
    write_python(tmp_path, "drops", code, DECOUPLED)
    with Server(tmp_path) as server, pytest.raises(InternalError, match=r"^The model dropped the response sender"):
        server.infer("drops", {"X": ROW[0]})


def test_a_finalizer_does_not_wait() -> None:
    star = SimulatedStar(patience_s=1.0, cache_bytes=0)
    done: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        with star.changed:
            pool.submit(star.later, lambda: done.append(True)).result(timeout=10)
            assert done == []
        star.run_until(lambda: bool(done))
