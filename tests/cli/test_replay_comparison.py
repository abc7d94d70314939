"""shoal/cli/replay_comparison.py: what counts as a difference between a recorded request and its replay."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli.replay_comparison import Answer, differences, quantile_ms, tolerance_of
from shoal.cli.serve import CommandLineError
from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.recorder.entry import Outcome
from shoal.recorder.recorded import RecordedRequest, Recording
from shoal.recorder.segment_file import file_head, pack_frame
from shoal.tolerance import OutputTolerance, Tolerance
from tests.recorder.entries import made

EXACT = Tolerance()


@pytest.fixture
def request_(tmp_path: Path) -> RecordedRequest:
    """One whose output OUT was FP32 [[3, 4]]."""
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    (found,) = Recording(tmp_path)
    return found


def answer(*values: Any, dtype: Any = np.float32, error: ShoalError | None = None) -> Answer:
    return Answer([] if error is not None else [{"OUT": np.array([values], dtype)}], error)


def test_equal_bits_are_no_difference(request_: RecordedRequest) -> None:
    assert differences(request_, answer(3, 4), EXACT) == []


def test_one_bit_is_a_difference_without_a_tolerance(request_: RecordedRequest) -> None:
    near = float(np.nextafter(np.float32(4), np.float32(5)))
    (found,) = differences(request_, answer(3, near), EXACT)
    assert (found.kind, found.number) == ("values", 1)
    assert 0 < found.max_abs < 1e-6
    assert differences(request_, answer(3, near), Tolerance(OutputTolerance(atol=1e-5))) == []
    assert differences(request_, answer(3, near), Tolerance(OutputTolerance(rtol=1e-6))) == []
    assert differences(request_, answer(3, 4.1), Tolerance(OutputTolerance(atol=0.05, rtol=0.01)))
    assert differences(request_, answer(3, 4.1), Tolerance(OutputTolerance(compares=False))) == []


@pytest.mark.parametrize(
    "other",
    [
        answer(3, 4, dtype=np.float64),
        answer(3, 4, 5),
        answer(3, float("nan")),
        Answer([{"OTHER": np.array([[3, 4]], np.float32)}]),
        Answer([]),
        answer(error=InternalError("it fell over")),
    ],
)
def test_other_types_sizes_names_and_outcomes_are_differences(request_: RecordedRequest, other: Answer) -> None:
    assert differences(request_, other, Tolerance(OutputTolerance(atol=1.0)))


def test_errors_are_compared_by_their_kind(tmp_path: Path) -> None:
    (tmp_path / "one.shoalrec").write_bytes(
        file_head() + pack_frame([made(outcome=Outcome.FAILED, status=InternalError.wire)])
    )
    (failed,) = Recording(tmp_path)
    assert differences(failed, answer(error=InternalError("in other words")), EXACT) == []
    assert differences(failed, answer(error=InvalidArgumentError("no")), EXACT)
    assert differences(failed, answer(3, 4), EXACT)


def test_a_wrong_tolerance_is_a_wrong_command_line() -> None:
    assert tolerance_of(None) == EXACT
    with pytest.raises(CommandLineError, match="atol=1e-5"):
        tolerance_of("atol")


def test_quantiles() -> None:
    assert quantile_ms([], 0.5) == 0
    assert quantile_ms([number * 1_000_000 for number in range(100)], 0.99) == 99
