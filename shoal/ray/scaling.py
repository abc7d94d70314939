"""The number of replicas that a deployment should have, by the queue age and utilisation of their models. Pure.

Ray Serve's own policy counts requests in flight, which says little of a server that batches: sixty-four requests may be
one batch of an idle model, or a minute of work. The age of the oldest waiting request says whether clients wait, and
utilisation whether fewer replicas would do.

Serve bounds the returned number by the fewest and the most replicas, and delays changes (upscale_delay_s,
downscale_delay_s); it runs in Serve's controller.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Names of the figures that replicas report to Serve (`record_autoscaling_stats`).
QUEUE_AGE, UTILISATION = "shoal_queue_age_seconds", "shoal_utilisation"
#: The most by which one decision multiplies the replicas: figures are older than the replicas that start meanwhile.
MAX_GROWTH = 2.0
_TINY = 1e-9


class Figures(NamedTuple):
    """The figures that one replica reports: those of its model that is worst off."""

    queue_age_s: float  # of the oldest request that awaits execution
    utilisation: float  # 0 to 1: the fraction of the time that the model's instances executed


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """The bounds and goals of a deployment's number of replicas. Raises ValueError for impossible ones."""

    min_replicas: int = 1  # 0: none while there is nothing to do; the first request then waits for one
    max_replicas: int = 4
    queue_age_s: float = 0.1  # the longest that requests should await execution
    utilisation: float = 0.7  # of the busiest model, averaged over replicas
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 120.0
    look_back_s: float = 10.0  # figures are averaged over this time

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ValueError(
                f"0 <= min_replicas <= max_replicas, and max_replicas >= 1, is not so of "
                f"{self.min_replicas} and {self.max_replicas}"
            )
        if not (self.queue_age_s > 0 and 0 < self.utilisation <= 1):
            raise ValueError(
                f"queue_age_s must be above 0 and utilisation within 0 and 1, got {self.queue_age_s} and "
                f"{self.utilisation}"
            )
        if min(self.upscale_delay_s, self.downscale_delay_s) < 0 or self.look_back_s <= 0:
            raise ValueError("delays must not be negative, and look_back_s must be above 0")


def desired_replicas(figures: Sequence[Figures], num_replicas: int, *, queue_age_s: float, utilisation: float) -> int:
    """The number of replicas that would have the goals' queue age and utilisation.

    `figures` are those of the running replicas, at most `num_replicas`, of which some may have reported nothing yet:
    these are taken to be like the others. Not bounded by the fewest and the most replicas. 0 if nothing is executed
    and nothing waits.
    """
    if not figures:
        return num_replicas
    age_s = max(each.queue_age_s for each in figures)
    busy = sum(min(1.0, each.utilisation) for each in figures) * max(1.0, num_replicas / len(figures))
    by_utilisation = math.ceil(busy / utilisation - _TINY)
    if age_s > queue_age_s:
        # Whether there are too few replicas follows from the oldest request of all, whatever the utilisation. How many
        # more are needed follows from the mean, since a single long batch may have delayed one replica.
        mean_s = sum(each.queue_age_s for each in figures) / len(figures)
        growth = min(MAX_GROWTH, max(1.0, mean_s / queue_age_s))
        return max(by_utilisation, math.ceil(num_replicas * growth - _TINY))
    if age_s > queue_age_s / 2:
        return max(by_utilisation, num_replicas)  # the queue age is near its goal: fewer replicas would miss it
    return by_utilisation


class QueueAgePolicy:
    """Serve's autoscaling policy (`policy_function`): called by its controller with the deployment's figures."""

    def __init__(self, queue_age_s: float, utilisation: float) -> None:
        self._queue_age_s = queue_age_s
        self._utilisation = utilisation

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas for an AutoscalingContext of Ray's, and no state of its own."""
        figures = figures_of(context.aggregated_metrics or {})
        desired = desired_replicas(
            figures,
            context.current_num_replicas,
            queue_age_s=self._queue_age_s,
            utilisation=self._utilisation,
        )
        return max(desired, context.total_num_requests > 0), {}


def figures_of(metrics: Mapping[str, Mapping[Any, float]]) -> list[Figures]:
    """The figures of each replica that has reported both queue age and utilisation."""
    ages, utilisations = metrics.get(QUEUE_AGE, {}), metrics.get(UTILISATION, {})
    return [Figures(ages[each], utilisations[each]) for each in ages if each in utilisations]
