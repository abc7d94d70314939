"""Whether there is as much of every resource as the instances of all models need. Runs in the supervisor."""

from collections.abc import Iterable, Sequence

from shoal.errors import InvalidArgumentError
from shoal.model_config import rate_limiter
from shoal.model_config.rate_limiter import Demand, Limit
from shoal.placement import Placement


class RateLimits:
    """What the model versions that there are demand; nothing where the rate limiter is off."""

    def __init__(self, limits: Sequence[Limit] | None = None) -> None:
        """`limits`: of --rate-limit-resource; None: --rate-limit=off."""
        self._limits = limits
        # Changed as versions come, are scaled and go.
        self._demands: dict[int, set[Demand]] = {}

    def admit(self, model_id: int, placements: Iterable[Placement]) -> None:
        """A version is to have these instances. Raises InvalidArgumentError, and nothing changes, where it cannot."""
        if self._limits is None:
            return
        demands = {**self._demands, model_id: {placement.demand for placement in placements}}
        for sentence in rate_limiter.faults(set[Demand]().union(*demands.values()), self._limits):
            raise InvalidArgumentError(sentence)
        self._demands = demands

    def dismiss(self, model_id: int) -> None:
        """A version is gone."""
        self._demands.pop(model_id, None)
