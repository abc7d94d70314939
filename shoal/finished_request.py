"""A request that has ended, as the batcher keeps it for lists of the slowest and of the failed requests. A value that
travels as msgpack to the supervisor and to front ends."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal import errors
from shoal.errors import ShoalError
from shoal.reasons import error_for
from shoal.timing import Execution, Points

#: The error text of a failed request to an ensemble, whose answer the batcher itself writes.
_FAILED_STEP = "a step has failed; what it said is listed with the step's model"


class FinishedRequest(NamedTuple):
    """A request that has ended. With `status` 0 it succeeded; else `reason` and `detail` are the batcher's refusal
    (shoal/reasons.py), or `reason` is 0 and `sentence` is the worker's."""

    model_id: int
    asker: str  # "front end", "client" (a guest), "model" (a caller), "ensemble" (for a step), or "shadow"
    id: str  # the request id that the client has given
    trace_id: str  # of the client's trace, 32 hexadecimal digits; empty if it is not known
    rows: int
    points: Points  # the first is 0: only the front end knows when the request's first bytes came
    status: int
    reason: int
    detail: int
    sentence: str
    execution: Execution | None  # None if no instance has answered

    @property
    def total_ns(self) -> int:
        """The time from the last bytes of the request to its answer, in ns: the total of shoal/timing.py without the
        time of receiving. The answer is the latest point: the batcher reads its clock once a step, so a worker's times
        may be later than `end_ns`."""
        return max(self.points) - self.points.start_ns

    def error(self, model: str, version: int, groups: Sequence[str]) -> ShoalError | None:
        """The error with which the request has failed, of a model with these instance groups; None if it succeeded."""
        if not self.status:
            return None
        if self.reason:
            return error_for(self.reason, self.detail, model=model, version=version, request_id=self.id, groups=groups)
        return errors.from_wire(self.status, self.sentence or _FAILED_STEP)

    @classmethod
    def from_message(cls, values: Sequence[Any]) -> "FinishedRequest":
        """The request in a message's list of values."""
        *head, points, status, reason, detail, sentence, execution = values
        made = None if execution is None else Execution(*execution)
        return cls._make((*head, Points._make(points), status, reason, detail, sentence, made))
