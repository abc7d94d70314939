"""What an instance runs before it is ready: samples as real batches, their files, their failures; and zeros."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import log
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.model_config import pbtxt
from shoal.model_config.checks import check
from shoal.model_config.normalise import normalise
from shoal.model_config.signature import Signature
from shoal.recorder.entry import Outcome
from shoal.recorder.recorded import RecordedRequest, Recording
from shoal.recorder.segment_file import file_head, pack_frame
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend
from shoal.workers.requests import Request
from shoal.workers.tensors import Array
from shoal.workers.warmup import smallest_inputs, warm_up
from tests.recorder.entries import made
from tests.workers.worker_harness import PerRequest, Returning, model, model_config, tensor_config

Batch = list[dict[str, Any]]
ID = "[request id: <id_unknown>] "


class Noting(Returning):
    """Answers what the test says, and notes every batch: per request, its inputs as lists."""

    def __init__(self, result: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
        super().__init__(result)
        self.batches: list[Batch] = []

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        self.batches.append([{name: array.tolist() for name, array in one.inputs.items()} for one in requests])
        super().execute(requests, answers)


def x_to_y(inputs: dict[str, Array]) -> dict[str, Array]:
    return {"Y": inputs["X"]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model's directory, with one version and data for warming up."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "warmup").mkdir()
    return tmp_path / "m"


def run(directory: Path, samples: str, backend: Backend, *, top: str = "max_batch_size: 4", kind: str = "FP32") -> None:
    """Check a model of an input X and an output Y, two numbers each, as the supervisor does; then warm it up."""
    text = f"""
        name: "m" backend: "identity" {top} {samples}
        input {{ name: "X" data_type: TYPE_{kind} dims: 2 }} output {{ name: "Y" data_type: TYPE_{kind} dims: 2 }}
    """
    config = normalise(pbtxt.parse(text, directory / "config.pbtxt"))
    check(config)
    one = replace(model(config), version_dir=str(directory / "1"))
    warm_up(backend, one, Signature.from_config(config))


def sample(data: str, *, batch_size: int = 1, name: str = "s", rest: str = "", kind: str = "FP32") -> str:
    return f"""
        model_warmup {{ name: "{name}" batch_size: {batch_size} {rest}
            inputs {{ key: "X" value {{ data_type: TYPE_{kind} dims: 2 {data} }} }} }}
    """


def refusal(directory: Path, samples: str, backend: Backend, **given: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        run(directory, samples, backend, **given)
    return caught.value


def test_a_sample_is_one_batch_of_requests_of_one_row(directory: Path) -> None:
    backend = Noting(x_to_y)
    run(directory, sample("zero_data: true", batch_size=3), backend)
    assert backend.batches == [[{"X": [[0, 0]]}] * 3]


@pytest.mark.parametrize(("count", "expected"), [(0, 1), (1, 1), (3, 3)])
def test_samples_run_in_their_order_and_count_times(directory: Path, count: int, expected: int) -> None:
    backend = Noting(x_to_y)
    skipped = sample("zero_data: true", batch_size=0)
    run(
        directory,
        sample("zero_data: true", rest=f"count: {count}") + skipped + sample("zero_data: true", batch_size=2),
        backend,
    )
    assert [len(batch) for batch in backend.batches] == [1] * expected + [2]


def test_without_a_batch_dimension_there_is_none(directory: Path) -> None:
    backend = Noting(x_to_y)
    run(directory, sample("zero_data: true"), backend, top="")
    assert backend.batches == [[{"X": [0, 0]}]]


def test_random_data_is_the_same_at_every_load(directory: Path) -> None:
    first, second = Noting(x_to_y), Noting(x_to_y)
    for backend in (first, second):
        run(directory, sample("random_data: true", kind="INT64"), backend, kind="INT64")
    assert first.batches == second.batches
    assert len(set(first.batches[0][0]["X"][0]) | {0}) == 3


def test_random_booleans_are_true_or_false_and_random_strings_empty(directory: Path) -> None:
    booleans = []

    def noted(inputs: dict[str, Array]) -> dict[str, Array]:
        booleans.append(inputs["X"].tobytes())
        return x_to_y(inputs)

    run(directory, sample("random_data: true", kind="BOOL", batch_size=4), Returning(noted), kind="BOOL")
    assert set(booleans[0]) <= {0, 1}
    backend = Noting(x_to_y)
    run(directory, sample("random_data: true", kind="STRING"), backend, kind="STRING")
    assert backend.batches == [[{"X": [[b"", b""]]}]]


def test_data_from_a_file_of_which_the_rest_is_left_alone(directory: Path) -> None:
    (directory / "warmup" / "numbers").write_bytes(np.array([1.5, -2, 7], np.float32).tobytes())
    backend = Noting(x_to_y)
    run(directory, sample('input_data_file: "numbers"', batch_size=2), backend)
    assert backend.batches == [[{"X": [[1.5, -2]]}] * 2]


def test_strings_from_a_file(directory: Path) -> None:
    (directory / "warmup" / "in").mkdir()
    (directory / "warmup" / "in" / "words").write_bytes(b"\3\0\0\0abc\0\0\0\0")
    backend = Noting(x_to_y)
    run(directory, sample('input_data_file: "in/words"', kind="STRING"), backend, kind="STRING")
    assert backend.batches == [[{"X": [[b"abc", b""]]}]]


def test_a_model_sees_reshaped_inputs(directory: Path) -> None:
    config = model_config(
        [tensor_config("X", "TYPE_FP32", [2, -1], reshape={"shape": [-1, 2]})],
        [tensor_config("Y", "TYPE_FP32", [-1, 2])],
        model_warmup=[
            {
                "name": "s",
                "batch_size": 1,
                "count": 0,
                "inputs": {"X": {"data_type": "TYPE_FP32", "dims": [2, 1], "zero_data": True}},
            }
        ],
    )
    backend = Noting(x_to_y)
    warm_up(backend, model(config), Signature.from_config(config))
    assert backend.batches == [[{"X": [[[0, 0]]]}]]


def test_a_version_directory_that_is_a_link_is_still_this_models(directory: Path, tmp_path: Path) -> None:
    (directory / "warmup" / "numbers").write_bytes(bytes(8))
    (directory / "1").rename(tmp_path / "elsewhere")
    (directory / "1").symlink_to(tmp_path / "elsewhere")
    run(directory, sample('input_data_file: "numbers"'), Noting(x_to_y))


def test_a_file_that_is_too_short_is_told_in_tritons_words(directory: Path) -> None:
    (directory / "warmup" / "numbers").write_bytes(bytes(7))
    error = refusal(directory, sample('input_data_file: "numbers"'), Noting(x_to_y))
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == f"{ID}warmup setting expects 8 bytes, but the data provided from numbersonly has 7 bytes"


def test_strings_that_are_too_few(directory: Path) -> None:
    (directory / "warmup" / "words").write_bytes(b"\1\0\0\0a")
    backend = Noting(x_to_y)
    error = refusal(directory, sample('input_data_file: "words"', kind="STRING"), backend, kind="STRING")
    assert "tensor 'X' of type BYTES and shape (1, 2) cannot be read from 5 bytes" in str(error)
    assert backend.batches == []


def test_only_files_of_the_directory_are_read_and_nothing_is_waited_for(directory: Path) -> None:
    warmup = directory / "warmup"
    (directory / "secret").write_bytes(bytes(8))
    (warmup / "link").symlink_to(directory / "secret")
    os.mkfifo(warmup / "fifo")
    outside = "warmup data file 'link' for input 'X' in model 'm' is outside directory 'warmup' of the model"
    unreadable = "failed to open text file for read "
    expected = {
        "link": outside,
        "fifo": f"{unreadable}{warmup}/fifo: it is not a regular file",
        "none": f"{unreadable}{warmup}/none: No such file or directory",
    }
    for name, sentence in expected.items():
        backend = Noting(x_to_y)
        assert str(refusal(directory, sample(f'input_data_file: "{name}"'), backend)) == sentence
        assert backend.batches == []


@pytest.mark.parametrize(
    ("top", "sentence"),
    [
        ("max_batch_size: 4", "failed to run warmup sample 's': batch size 5 for 'm_0_0', max allowed is 4; "),
        ("", "failed to run warmup sample 's': batch size 5 for 'm_0_0', max allowed is 0; "),
    ],
)
def test_a_batch_that_is_too_large_is_not_made(directory: Path, top: str, sentence: str) -> None:
    backend = Noting(x_to_y)
    assert str(refusal(directory, sample("zero_data: true", batch_size=5), backend, top=top)) == sentence
    assert backend.batches == []


def raising(error: Exception) -> Callable[[dict[str, Array]], dict[str, Array]]:
    def result(_inputs: dict[str, Array]) -> dict[str, Array]:
        raise error

    return result


def test_a_failing_sample_fails_the_load_and_ends_the_warm_up(directory: Path) -> None:
    backend = Noting(raising(InternalError("An Error Occurred")))
    samples = sample("zero_data: true", name="zero sample", batch_size=2) + sample("zero_data: true")
    error = refusal(directory, samples, backend)
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == "failed to run warmup sample 'zero sample': An Error Occurred; "
    assert len(backend.batches) == 1


def test_what_no_backend_means_to_raise_is_told_and_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    error = refusal(directory, sample("zero_data: true"), Returning(raising(KeyError("x"))))
    assert str(error) == ("failed to run warmup sample 's': model 'm', instance 'm_0_0' failed: KeyError: 'x'; ")
    assert "Traceback" in caplog.text
    assert vars(caplog.records[-1])["stage"] == "load"


def test_an_output_that_is_not_as_configured_is_found(directory: Path) -> None:
    error = refusal(directory, sample("zero_data: true"), Returning(lambda inputs: {"Y": inputs["X"].astype("f8")}))
    assert str(error) == ("failed to run warmup sample 's': model 'm' returned output 'Y' as float64, expected FP32; ")


def test_a_backend_that_answers_each_request_by_itself(directory: Path) -> None:
    run(directory, sample("zero_data: true", batch_size=2), PerRequest(x_to_y))


def test_every_iteration_is_in_the_verbose_log(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(log.verbose(1), "shoal"):
        run(directory, sample("zero_data: true", rest="count: 2"), Noting(x_to_y))
    assert [record.getMessage() for record in caplog.records if record.levelno < logging.INFO] == [
        f"model 'm' instance m_0_0 is running warmup sample 's' for iteration {number}" for number in (1, 2)
    ]


def test_zeros_are_one_row_in_the_shapes_the_model_sees() -> None:
    config = model_config(
        [
            tensor_config("A", "TYPE_FP32", [-1, 3]),
            tensor_config("S", "TYPE_INT64", [1], reshape={"shape": []}),
            tensor_config("T", "TYPE_BF16", [2]),
            tensor_config("O", "TYPE_FP32", [2], optional=True),
        ],
        [],
    )
    inputs = smallest_inputs(Signature.from_config(config))
    assert inputs is not None
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "A": [[[0, 0, 0]]],
        "S": [0],
        "T": [[0, 0]],
    }
    unbatched = smallest_inputs(Signature.from_config({**config, "max_batch_size": 0}))
    assert unbatched is not None
    assert unbatched["T"].tolist() == [0, 0]


def test_a_text_is_not_guessed() -> None:
    text = tensor_config("T", "TYPE_STRING", [2])
    assert smallest_inputs(Signature.from_config(model_config([text], []))) is None
    assert smallest_inputs(Signature.from_config(model_config([{**text, "optional": True}], []))) == {}


def recorded(directory: Path, *entries: bytes) -> str:
    """Write a recording of the model; returns the parameter that names it."""
    (directory / "warmup" / "hour.shoalrec").write_bytes(file_head() + pack_frame(entries))
    return 'parameters { key: "warmup_recording" value { string_value: "hour.shoalrec" } }'


def asked(key: int, batch: int, position: int, **given: Any) -> bytes:
    """A recorded request that was executed in a batch, with the input X of 1, 2."""
    return made(key=key, tensor="X", instance=1, worker=3, batch=batch, position=position, **given)


def test_a_recording_runs_in_the_batches_that_were_recorded(directory: Path) -> None:
    backend = Noting(x_to_y)
    entries = [
        asked(1, 7, 0), asked(2, 8, 1), asked(3, 8, 0, id_="first"), asked(4, 9, 0, model="other"),
        asked(5, 9, 0, outcome=Outcome.FAILED, status=InternalError.wire),
    ]  # fmt: skip
    run(directory, recorded(directory, *entries) + sample("zero_data: true"), backend)
    one = {"X": [[1, 2]]}
    assert backend.batches == [[{"X": [[0, 0]]}], [one], [one, one]]


def test_of_a_long_recording_only_the_first_batches_are_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of requests has more bytes of tensors than the machine has memory."""
    monkeypatch.setattr("shoal.workers.warmup.MAX_RECORDED_BATCHES", 3)
    backend, read, whole = Noting(x_to_y), list[int](), Recording.__iter__

    def noted(recording: Recording) -> Iterator[RecordedRequest]:
        for each in whole(recording):
            read.append(each.key)
            yield each

    monkeypatch.setattr(Recording, "__iter__", noted)
    named = recorded(directory, *[asked(key, batch=key // 2, position=key % 2) for key in range(40)])
    run(directory, named, backend)
    assert [len(batch) for batch in backend.batches] == [2, 2, 2]
    assert read == list(range(7))


def test_a_recorded_batch_runs_as_far_as_the_model_takes_it(directory: Path) -> None:
    backend = Noting(x_to_y)
    run(directory, recorded(directory, *[asked(key, 1, key) for key in range(6)]), backend)
    assert [len(batch) for batch in backend.batches] == [4]


def test_a_recording_that_does_not_fit_is_refused(directory: Path) -> None:
    backend = Noting(x_to_y)
    named = recorded(directory, asked(1, 1, 0, model="other"))
    assert "has no answered request to model 'm'" in str(refusal(directory, named, backend))
    named = recorded(directory, made(key=1))
    assert "failed to run warmup sample 'hour.shoalrec': request 1 or one of its batch" in str(
        refusal(directory, named, backend)
    )
    (directory / "warmup" / "hour.shoalrec").unlink()
    assert "failed to open the recording" in str(refusal(directory, named, backend))
    for place in ("../hour.shoalrec", "/etc/passwd"):
        elsewhere = named.replace("hour.shoalrec", place)
        assert "is outside directory 'warmup' of the model" in str(refusal(directory, elsewhere, backend))
    (directory / "warmup" / "hour.shoalrec").symlink_to("/etc/hostname")
    assert "is outside directory 'warmup' of the model" in str(refusal(directory, named, backend))
    sequences = f"sequence_batching {{ }} {named}"
    assert "which is a model of sequences" in str(refusal(directory, sequences, backend))
    assert backend.batches == []
