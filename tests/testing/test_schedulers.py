"""What a server's batcher does beside batching, in a test: ensembles, sequences, the response cache, priorities,
deadlines, and models that are reloaded beneath them.
"""

from pathlib import Path

import numpy as np
import pytest

from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.testing import Server
from tests.testing.models import DECOUPLED, DELAYED, DOUBLE, SEQUENCES, SUMS, write_identity, write_python

SAMPLES = Path(__file__).parents[2] / "model_repository"
ROW = [[1.0, 2.0]]


def write_ensemble(repository: Path, name: str, *models: str, config: str = "max_batch_size: 8") -> None:
    """An ensemble whose steps come one after the other, each a model with X and Y."""
    tensors = ["X", *[f"t{number}" for number in range(1, len(models))], "Y"]
    steps = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{tensors[number]}" }} '
        f'output_map {{ key: "Y" value: "{tensors[number + 1]}" }} }}'
        for number, model in enumerate(models)
    ]
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(
        f'platform: "ensemble" {config}\n'
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
        'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
        f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}"
    )


# -- ensembles ----------------------------------------------------------------------------------------------------


def test_an_ensemble_brings_its_models_and_passes_tensors_through_their_schedulers(tmp_path: Path) -> None:
    write_python(tmp_path, "double", DOUBLE, DELAYED)
    write_ensemble(tmp_path, "chain", "double", "double")
    with Server(tmp_path, ["chain"]) as server:
        assert server.models == ["chain", "double"]
        futures = [server.submit("chain", {"X": ROW}, request_id=str(number)) for number in range(2)]
        assert [future.result()["Y"].tolist() for future in futures] == [[[4, 8]]] * 2
        assert [(batch.model, batch.request_ids, batch.time_ms) for batch in server.batches] == [
            ("double", ("0", "1"), 1), ("double", ("0", "1"), 2),
        ]  # fmt: skip
        assert futures[0].result().model_name == "chain"


def test_the_sample_ensemble_runs_from_its_own_directory() -> None:
    with Server(SAMPLES / "text_ensemble") as server:
        assert server.models == ["encoder", "postprocessing", "text_ensemble", "tokenizer"]
        response = server.infer("text_ensemble", {"text": [["will it rain in the mountains tomorrow"]]})
        assert response["label"].tolist() == [[b"weather"]]


def test_what_a_step_raises_is_the_cause_of_the_ensemble_s_error(tmp_path: Path) -> None:
    write_python(tmp_path, "raises", "\n    def execute(self, requests):\n        raise KeyError('no fish')\n")
    write_ensemble(tmp_path, "chain", "raises")
    with Server(tmp_path) as server, pytest.raises(InternalError, match="in ensemble 'chain', Failed to") as told:
        server.infer("chain", {"X": ROW})
    assert isinstance(told.value.__cause__, KeyError)


def test_an_ensemble_goes_on_with_a_step_that_is_loaded_again(tmp_path: Path) -> None:
    write_identity(tmp_path, "step")
    write_ensemble(tmp_path, "chain", "step")
    with Server(tmp_path) as server:
        assert server.infer("chain", {"X": ROW})["Y"].tolist() == ROW
        (tmp_path / "step" / "config.pbtxt").unlink()
        write_python(tmp_path / "new", "step", DOUBLE)
        (tmp_path / "new" / "step" / "config.pbtxt").rename(tmp_path / "step" / "config.pbtxt")
        (tmp_path / "new" / "step" / "1" / "model.py").rename(tmp_path / "step" / "1" / "model.py")
        server.load("step")
        assert server.infer("chain", {"X": ROW})["Y"].tolist() == [[2, 4]]
        server.unload("step")
        with pytest.raises(UnavailableError, match="a model of step 0 is not at ready state"):
            server.infer("chain", {"X": ROW})


def test_an_ensemble_that_does_not_fit_its_models_is_refused(tmp_path: Path) -> None:
    write_identity(tmp_path, "step", "max_batch_size: 4")
    write_ensemble(tmp_path, "chain", "step")
    write_ensemble(tmp_path, "circle", "other")
    write_ensemble(tmp_path, "other", "circle")
    with pytest.raises(InvalidArgumentError, match="which only allows maximum batch size to be 4"):
        Server(tmp_path, ["chain"])
    with pytest.raises(InvalidArgumentError, match="circular dependency between ensembles: circle -> other -> circle"):
        Server(tmp_path, ["circle"])


def test_every_answer_of_a_decoupled_step_goes_through_the_rest_of_the_ensemble(tmp_path: Path) -> None:
    repeat = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(40):
                sender.send(answer(x_of(request).as_numpy() * number))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_python(tmp_path, "repeat", repeat, DECOUPLED)
    write_python(tmp_path, "double", DOUBLE, "")
    write_ensemble(tmp_path, "chain", "repeat", "double", config="")
    with Server(tmp_path) as server:
        answers = server.stream("chain", {"X": ROW[0]})
        assert sorted(each["Y"][0] for each in answers) == [2 * number for number in range(40)]


# -- sequences ------------------------------------------------------------------------------------------------------


def test_a_sequence_keeps_its_state_and_its_slot(tmp_path: Path) -> None:
    write_python(tmp_path, "sums", SUMS, SEQUENCES)
    with Server(tmp_path) as server:
        server.infer("sums", {"X": ROW}, sequence_id=7, sequence_start=True)
        server.infer("sums", {"X": [[5, 5]]}, sequence_id="b", sequence_start=True)
        together = [server.submit("sums", {"X": ROW}, sequence_id=each) for each in (7, "b")]
        assert [each.result()["Y"].tolist() for each in together] == [[[2, 4]], [[6, 7]]]
        assert server.batches[-1].rows == 2
        assert server.infer("sums", {"X": ROW}, sequence_id=7, sequence_end=True)["Y"].tolist() == [[3, 6]]


def test_a_sequence_that_never_began_is_refused_and_one_that_idles_ends(tmp_path: Path) -> None:
    write_python(tmp_path, "sums", SUMS, SEQUENCES)
    with Server(tmp_path) as server:
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            server.infer("sums", {"X": ROW}, sequence_id=7)
        with pytest.raises(InvalidArgumentError, match="must specify a non-zero or non-empty correlation ID"):
            server.infer("sums", {"X": ROW})
        server.infer("sums", {"X": ROW}, sequence_id=7, sequence_start=True)
        server.advance(seconds=6)
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            server.infer("sums", {"X": ROW}, sequence_id=7)


# -- the response cache -----------------------------------------------------------------------------------------------


def test_an_equal_request_is_answered_from_the_cache(tmp_path: Path) -> None:
    write_python(tmp_path, "double", DOUBLE, "max_batch_size: 8 response_cache { enable: true }")
    with Server(tmp_path, cache_bytes=1 << 20) as server:
        answers = [server.infer("double", {"X": ROW})["Y"].tolist() for _ in range(3)]
        assert answers == [[[2, 4]]] * 3
        assert len(server.batches) == 1
        assert server.infer("double", {"X": [[0, 1]]})["Y"].tolist() == [[0, 2]]
        server.load("double")
        server.infer("double", {"X": ROW})
        assert len(server.batches) == 3, "what is loaded again is executed again"


def test_equal_requests_are_executed_once_where_they_wait_together(tmp_path: Path) -> None:
    write_python(tmp_path, "double", DOUBLE, f"{DELAYED} response_cache {{ enable: true }}")
    with Server(tmp_path, cache_bytes=1 << 20) as server:
        futures = [server.submit("double", {"X": ROW}) for _ in range(3)]
        assert [each.result()["Y"].tolist() for each in futures] == [[[2, 4]]] * 3
        assert [batch.rows for batch in server.batches] == [1]


def test_without_a_cache_every_request_is_executed(tmp_path: Path) -> None:
    write_python(tmp_path, "double", DOUBLE, "max_batch_size: 8 response_cache { enable: true }")
    with Server(tmp_path) as server:
        for _ in range(2):
            server.infer("double", {"X": ROW})
        assert len(server.batches) == 2


# -- priorities and deadlines -----------------------------------------------------------------------------------------


def test_what_is_more_urgent_is_executed_first(tmp_path: Path) -> None:
    levels = "priority_levels: 2 default_priority_level: 2"
    write_identity(tmp_path, config=f"max_batch_size: 1 dynamic_batching {{ {levels} }}")
    with Server(tmp_path, execution_ms={"echo": 10}) as server:
        for name, priority in (("running", 0), ("low", 2), ("urgent", 1), ("usual", 0)):
            server.submit("echo", {"X": ROW}, request_id=name, priority=priority)
            server.advance(milliseconds=1)
        server.run_until_idle()
        assert [batch.request_ids for batch in server.batches] == [("running",), ("urgent",), ("low",), ("usual",)]


def test_a_client_s_deadline_ends_its_wait_in_the_queue(tmp_path: Path) -> None:
    write_identity(tmp_path, config="max_batch_size: 1")
    with Server(tmp_path, execution_ms={"echo": 10}) as server:
        running = server.submit("echo", {"X": ROW}, deadline_ms=5)
        waiting = server.submit("echo", {"X": ROW}, deadline_ms=5, request_id="late")
        server.advance(milliseconds=5)
        assert (running.done, waiting.done) == (False, True)
        with pytest.raises(UnavailableError, match="Request timeout expired"):
            waiting.result()
        assert running.result()["Y"].tolist() == ROW
        assert len(server.batches) == 1


def test_a_call_inherits_the_deadline_of_the_request_that_it_is_made_for(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        response = asked("busy", x_of(requests[0])).exec()
        assert response.has_error(), "it was answered in time"
        return [pb_utils.InferenceResponse(error=response.error())]
"""
    write_python(tmp_path, "caller", code)
    write_identity(tmp_path, "busy", "max_batch_size: 1")
    with Server(tmp_path, execution_ms={"busy": 100}) as server:
        server.submit("busy", {"X": ROW})
        with pytest.raises(Exception, match="Request timeout expired"):
            server.infer("caller", {"X": ROW}, deadline_ms=20)
        assert server.now_ms == 20


def test_cancelling_a_request_cancels_what_its_model_has_asked_for(tmp_path: Path) -> None:
    code = """
    async def execute(self, requests):
        response = await asked("slow", x_of(requests[0])).async_exec()
        return [pb_utils.InferenceResponse(error=response.error())]
"""
    slow = f"""
    async def execute(self, requests):
        import asyncio
        while not requests[0].is_cancelled():
            await asyncio.sleep(1)
        open({str(tmp_path / "told")!r}, "w").close()
        return [answer(x_of(requests[0]).as_numpy())]
"""
    write_python(tmp_path / "models", "caller", code)
    write_python(tmp_path / "models", "slow", slow)
    with Server(tmp_path / "models") as server:
        future = server.submit("caller", {"X": ROW})
        server.advance(seconds=3)
        assert not (tmp_path / "told").exists()
        future.cancel()
        server.advance(seconds=1)
        assert (tmp_path / "told").exists()
        with pytest.raises(Exception, match="Request was cancelled"):
            future.result()


# -- large tensors, and what stays behind ----------------------------------------------------------------------------


def test_large_tensors_are_lent_between_models(tmp_path: Path) -> None:
    code = """
    def execute(self, requests):
        response = asked("echo", x_of(requests[0])).exec()
        again = asked("echo", pb_utils.get_output_tensor_by_name(response, "Y"))
        again.inputs()[0]._name = "X"
        return [answer(y_of(again.exec()))]
"""
    version = write_python(tmp_path, "caller", code)
    write_identity(tmp_path)
    for config in (version.parent / "config.pbtxt", tmp_path / "echo" / "config.pbtxt"):
        config.write_text(config.read_text().replace("dims: [ 2 ]", "dims: [ -1 ]"))
    large = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
    with Server(tmp_path) as server:
        for _ in range(3):
            assert np.array_equal(server.infer("caller", {"X": large})["Y"], large)
