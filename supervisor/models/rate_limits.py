"""The rate limiter's resources: whether all models' instances have enough of each. Runs in the supervisor."""

from collections.abc import Iterable, Sequence

from shoal.errors import InvalidArgumentError
from shoal.model_config import rate_limiter
from shoal.model_config.rate_limiter import Demand, Limit
from shoal.placement import Placement


class RateLimits:
    """The demands of all model versions on the rate limiter's resources; nothing is kept where the limiter is off."""

    def __init__(self, limits: Sequence[Limit] | None = None) -> None:
        """`limits` are those of --rate-limit-resource; None means --rate-limit=off."""
        self._limits = limits
        # Changed as versions come, are scaled and go.
        self._demands: dict[int, set[Demand]] = {}

    def admit(self, model_id: int, placements: Iterable[Placement]) -> None:
        """Note a version's demands. Raises InvalidArgumentError, and changes nothing, if they are too high."""
        if self._limits is None:
            return
        demands = {**self._demands, model_id: {placement.demand for placement in placements}}
        for sentence in rate_limiter.faults(set[Demand]().union(*demands.values()), self._limits):
            raise InvalidArgumentError(sentence)
        self._demands = demands

    def dismiss(self, model_id: int) -> None:
        """Forget the demands of a version that has ended."""
        self._demands.pop(model_id, None)
