"""The comparator's findings: pairs of answers are compared and counted, and the worst disagreements kept. Pure.

An entry of the comparator's ring has a request with its answer, and its execution by the shadow. At most
MAX_EXAMPLES disagreements are kept for each pair of versions, each with MAX_VALUES values of a tensor.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.datatypes import BF16
from shoal.distances import as_numbers
from shoal.errors import ShoalError
from shoal.messages.to_comparator import AnswersCompared
from shoal.recorder import entry
from shoal.recorder.comparing_function import ComparingFunction
from shoal.recorder.comparison import ValueDifference, value_differences
from shoal.recorder.entry import Entry, EntryError
from shoal.recorder.recorded import RecordedRequest, RecordedResponse, RecordedTensor, answer_of, request_of
from shoal.shadow import Pair, ShadowRule, worst
from shoal.tolerance import Tolerance, read_tolerance

#: Values of a tensor in an example, and bytes of a text there (ours).
MAX_VALUES, MAX_TEXT = 16, 64
#: Sentences and tensors in an example (ours).
MAX_SENTENCES, MAX_TENSORS = 4, 8
_MAX_SENTENCE = 500


class _Counts:
    """The counts of one pair's compared answers since the last report."""

    __slots__ = ("agreed", "disagreed", "dropped", "examples", "failed", "primary_ns", "shadow_ns")

    def __init__(self) -> None:
        self.agreed = self.disagreed = self.failed = self.dropped = self.primary_ns = self.shadow_ns = 0
        self.examples: list[dict[str, Any]] = []


class Compared(NamedTuple):
    """A request with the primary's answer, and the shadow's answer or error."""

    pair: Pair
    request: RecordedRequest
    response: RecordedResponse | None
    error: ShoalError | None
    compute_ns: int  # the time that the shadow took


class Disagreements:
    """The comparisons of all pairs of versions: tolerances, counts and the worst disagreements."""

    def __init__(self, rules: Iterable[Sequence[Any]]) -> None:
        # All by pair of versions: the rules in force (changed by `change`), and the counts since the last report.
        self._tolerances: dict[Pair, Tolerance] = {}
        self._functions: dict[Pair, ComparingFunction] = {}
        self._counts: dict[Pair, _Counts] = {}
        self.change(rules)

    def change(self, rules: Iterable[Sequence[Any]]) -> None:
        """Compare by these rules from now on: the fields of ShadowRules, which the supervisor has checked."""
        known = [ShadowRule(*rule) for rule in rules]
        self._tolerances = {each.pair: read_tolerance(each.compare) for each in known}
        self._functions = {each.pair: ComparingFunction(Path(each.function)) for each in known if each.function}

    def take(self, memory: memoryview) -> None:
        """Compare the pair of answers in an entry. Raises EntryError, ShoalError or ValueError for a damaged entry,
        whose pair counts as dropped if the entry shows of which versions it is."""
        entries = entries_of(memory)
        counts = self._counts.setdefault(_pair(*entries), _Counts())
        try:
            compared = compared_of(*entries)
            found = differences(compared, self._tolerances.get(compared.pair, Tolerance()))
            if compared.error is None and (function := self._functions.get(compared.pair)) is not None:
                found = [*own_differences(compared, function), *found]
        except (ShoalError, ValueError):
            counts.dropped += 1
            raise
        points = compared.request.points
        counts.primary_ns += max(0, points.compute_end_ns - points.compute_start_ns)
        counts.shadow_ns += compared.compute_ns
        if not found:
            counts.agreed += 1
            return
        counts.disagreed += 1
        counts.failed += compared.error is not None
        counts.examples = worst([*counts.examples, example(compared, found)])

    def drop(self, memory: memoryview) -> None:
        """Count the pair of answers in an entry as one that is not compared. Raises as `take` does."""
        self._counts.setdefault(_pair(*entries_of(memory)), _Counts()).dropped += 1

    def reports(self) -> list[AnswersCompared]:
        """Messages with the counts of all answers compared since the last call."""
        counts, self._counts = self._counts, {}
        return [
            AnswersCompared(
                *pair, each.agreed, each.disagreed, each.failed, each.primary_ns, each.shadow_ns, each.examples,
                each.dropped,
            )
            for pair, each in counts.items()
        ]  # fmt: skip


def entries_of(memory: memoryview) -> tuple[Entry, Entry]:
    """The request's entry and the shadow's, which together are an entry of the comparator's ring. Raises EntryError or
    ValueError if they are damaged."""
    if len(memory) < entry.PAIR_HEAD.size:
        raise EntryError(f"{len(memory)} bytes are no pair of entries")
    (nbytes,) = entry.PAIR_HEAD.unpack_from(memory)
    start = entry.PAIR_HEAD.size
    first, second = entry.unpack(memory[start : start + nbytes]), entry.unpack(memory[start + nbytes :])
    if first.model != second.model:
        raise EntryError(f"answers of the models '{first.model}' and '{second.model}'")
    return first, second


def _pair(first: Entry, second: Entry) -> Pair:
    return Pair(first.model, first.version, second.version)


def compared_of(first: Entry, second: Entry) -> Compared:
    """The two answers in two entries. Raises ShoalError or ValueError for damaged ones."""
    return Compared(_pair(first, second), request_of(first), *answer_of(second))


def differences(compared: Compared, tolerance: Tolerance) -> list[ValueDifference]:
    """The differences between the primary's answer and the shadow's; empty if they agree. Raises ValueError for a
    damaged answer."""
    error, response = compared.error, compared.response
    if error is not None:
        return [ValueDifference(f"the shadow failed: {error.words}: {error}"[:_MAX_SENTENCE])]
    if response is None or not compared.request.responses:
        raise EntryError("an answer is missing")
    outputs = {each.name: each.array() for each in response.outputs}
    return value_differences(compared.request.responses[0], outputs, tolerance, "was answered", is_strict=True)


def own_differences(compared: Compared, function: ComparingFunction) -> list[ValueDifference]:
    """The differences between two answers according to the model's own function; empty if they agree. Raises ValueError
    for a damaged answer."""
    response = compared.response
    assert response is not None, "there is no error"
    tensors = compared.request.responses[0].outputs, response.outputs, compared.request.inputs
    sentence = function.difference(*[{each.name: _array(each) for each in some} for some in tensors])
    return [ValueDifference(sentence)] if sentence else []


def _array(tensor: RecordedTensor) -> Any:
    """A tensor's values, those of BF16 as FP32."""
    array = tensor.array()
    if tensor.datatype != BF16.name:
        return array
    return as_numbers(array, BF16).astype("f4").reshape(array.shape)


def example(compared: Compared, found: Sequence[ValueDifference]) -> dict[str, Any]:
    """A disagreement as clients see it, in JSON: what differs, and the first values of inputs and outputs."""
    request, response = compared.request, compared.response
    return {
        "id": request.id[:MAX_TEXT],
        "at_ns": request.arrival_ns,
        "rows": request.rows,
        "failed": compared.error is not None,
        "max_abs": _finite(max([each.max_abs for each in found])),
        "max_rel": _finite(max([each.max_rel for each in found])),
        "what": [each.what[:_MAX_SENTENCE] for each in found[:MAX_SENTENCES]],
        "inputs": _shown(request.inputs),
        "primary": _shown(request.responses[0].outputs if request.responses else ()),
        "shadow": _shown(() if response is None else response.outputs),
    }


def _finite(value: float) -> float:
    return value if value == value and value < 1e308 else 1e308


def _shown(tensors: Sequence[RecordedTensor]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape), "values": _values(each)}
        for each in tensors[:MAX_TENSORS]
    ]


def _values(tensor: RecordedTensor) -> list[Any]:
    """The first values of a tensor, as JSON has them: texts are cut, values that are no numbers are texts."""
    try:
        values = _array(tensor).ravel()[:MAX_VALUES].tolist()
    except (ShoalError, ValueError):
        return []
    return [
        each[:MAX_TEXT].decode("utf-8", "replace")
        if isinstance(each, bytes)
        else each
        if isinstance(each, (bool, int)) or abs(each) < float("inf")
        else str(each)
        for each in values
    ]
