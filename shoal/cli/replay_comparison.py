"""The differences between recorded answers and a replay's. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.cli.serve import CommandLineError
from shoal.distances import Array
from shoal.errors import InvalidArgumentError, ShoalError
from shoal.recorder.comparison import value_differences
from shoal.tolerance import Tolerance, read_tolerance

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedRequest


def tolerance_of(text: str | None) -> Tolerance:
    """The tolerance that the text of `--compare` means. Raises CommandLineError for any other text."""
    try:
        found = read_tolerance(text)
    except InvalidArgumentError as error:
        raise CommandLineError(f"--compare: {error}") from None
    if found.uses_function:
        raise CommandLineError("--compare: python is for shadows: a recording knows no directory of its model")
    return found


@dataclass(slots=True)
class Answer:
    """An answer of a replay: outputs of each response, or the error; and the time that the answer took."""

    responses: list[dict[str, Array]] = field(default_factory=list)
    error: ShoalError | None = None
    time_ns: int = 0
    late_ns: int = 0  # how much later the request was sent than at its recorded time


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a recorded answer and the replay's."""

    number: int
    kind: str  # "outcome" or "values"
    what: str
    max_abs: float = 0.0
    max_rel: float = 0.0


def differences(request: "RecordedRequest", answer: Answer, tolerance: Tolerance) -> list[Difference]:
    """The differences between a recorded answer and a new one; empty if they agree."""
    before, after = request.error, answer.error
    if (before is None) != (after is None) or (before is not None and before.wire != getattr(after, "wire", None)):
        told = ["answered" if each is None else f"{each.words}: {each}" for each in (before, after)]
        return [Difference(request.number, "outcome", f"recorded: {told[0]}; replayed: {told[1]}")]
    if before is not None or not tolerance.compares:
        return []
    if len(request.responses) != len(answer.responses):
        what = f"{len(request.responses)} responses were recorded, {len(answer.responses)} came"
        return [Difference(request.number, "outcome", what)]
    return [
        Difference(request.number, "values", *each)
        for response, outputs in zip(request.responses, answer.responses, strict=True)
        for each in value_differences(response, outputs, tolerance)
    ]


def quantile_ms(times_ns: Sequence[int], share: float) -> float:
    """The time in ms that a share of all times does not exceed; 0 if there are no times."""
    ordered = sorted(times_ns)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6 if ordered else 0.0
