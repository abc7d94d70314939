"""Recycling: an instance that has taken `max_requests`, or grown beyond `max_rss`, is replaced by a fresh one.

The fresh instance is up before the old one ends, which finishes its requests: no request fails or waits. Only one
instance of a version is replaced at a time, so that memory for one more instance is enough. Instances that grow beyond
`max_rss` again and again, because the model's requests need more, are replaced as rarely as dead instances are started
again (restarts.py). Runs in the supervisor.
"""

import logging
from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.model_config.recycling import RecyclingLimits, recycling_limits
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.models.models import Models
from shoal.supervisor.models.served_version import ServedVersion
from shoal.supervisor.processes.progress import WorkerProgress, rss_bytes
from shoal.supervisor.processes.restarts import Restarts

_log = logging.getLogger(__name__)

#: Seconds between two checks (ours).
LOOK_S = 1.0
#: Seconds for which an instance is left alone after its replacement did not come up (ours).
RETRY_S = 30.0
_MIB = 1 << 20


class Recycling:
    """Replaces the instances that have reached a limit of their model."""

    def __init__(self, models: Models, draw: Callable[[int], int]) -> None:
        """`draw(n)` is a random whole number from 0 to n."""
        self._loop = models.loop
        self._models = models
        self._draw = draw
        # Changed by each check. By the instance's number: its jitter (requests that it may take beyond max_requests),
        # when its replacement may be tried again, and the instances that recycling does not make smaller.
        self._jitters: dict[int, int] = {}
        self._retry_s: dict[int, float] = {}
        self._too_large: set[int] = set()
        # By version and instance's name, which a fresh instance inherits: how often instances of the name have grown,
        # and when the next one may be replaced for that.
        self._growths: dict[tuple[int, str], Restarts] = {}
        self._growth_retry_s: dict[tuple[int, str], float] = {}

    def watch(self) -> None:
        """Check all instances now and every LOOK_S."""
        self._loop.call_after(LOOK_S, self.watch)
        self.look()

    def look(self) -> None:
        """Replace all instances that are over a limit of their model."""
        numbers, names = set[int](), set[tuple[int, str]]()
        for model in self._models.models.values():
            for served in model.serving.values():
                limits = recycling_limits(served.version.config)
                if limits.max_requests or limits.max_rss_bytes:
                    numbers |= {instance.number for instance in served.instances}
                    names |= {_name_of(instance) for instance in served.instances}
                    with contained(served):
                        self._judge(served, limits)
        self._jitters = {number: jitter for number, jitter in self._jitters.items() if number in numbers}
        self._retry_s = {number: retry_s for number, retry_s in self._retry_s.items() if number in numbers}
        self._too_large &= numbers
        self._growths = {name: growths for name, growths in self._growths.items() if name in names}
        self._growth_retry_s = {name: retry_s for name, retry_s in self._growth_retry_s.items() if name in names}

    def _judge(self, served: ServedVersion, limits: RecyclingLimits) -> None:
        for instance in tuple(served.instances):
            progress = instance.progress
            if progress is None or self._retry_s.get(instance.number, 0.0) > self._loop.now_s():
                continue
            if why := self._taken(instance, progress, limits):
                self._replace(served, instance, why)
            elif (why := self._grown(instance, limits)) and self._replace(served, instance, why):
                self._note_growth(instance)

    def _taken(self, instance: Instance, progress: WorkerProgress, limits: RecyclingLimits) -> str:
        """The log's clause that an instance has taken enough requests; empty if it has not."""
        if limits.max_requests:
            jitter = self._jitters.setdefault(instance.number, self._draw(limits.max_requests_jitter))
            if progress.num_requests >= limits.max_requests + jitter:
                return (
                    f"it has taken {progress.num_requests} requests, the model's 'max_requests' is "
                    f"{limits.max_requests}"
                )
        return ""

    def _grown(self, instance: Instance, limits: RecyclingLimits) -> str:
        """The log's clause that an instance has grown too large; empty if not, or if it may not be replaced for it."""
        if self._growth_retry_s.get(_name_of(instance), 0.0) > self._loop.now_s():
            return ""
        if limits.max_rss_bytes and rss_bytes(instance.pid) > limits.max_rss_bytes:
            if instance.rss_when_up_bytes <= limits.max_rss_bytes:
                return _memory(rss_bytes(instance.pid), limits)
            if instance.number not in self._too_large:
                self._too_large.add(instance.number)
                _log.warning(
                    "instance '%s' of model '%s' is not recycled: when it came up, before any request, %s",
                    instance.name, instance.version.name, _memory(instance.rss_when_up_bytes, limits),
                )  # fmt: skip
        return ""

    def _note_growth(self, instance: Instance) -> None:
        """Note that an instance is replaced because it has grown, and when the fresh instance may be replaced for that;
        warn if growth recurs too often."""
        name, now_s = _name_of(instance), self._loop.now_s()
        growths = self._growths.setdefault(name, Restarts())
        up_s = max(now_s - instance.worker.up_since_s, 1e-3)
        verdict = growths.died(now_s, up_s, has_completed=False)
        self._growth_retry_s[name] = now_s + verdict.pause_s
        if verdict.is_failed:
            _log.warning(
                "instance '%s' of model '%s' has grown beyond 'max_rss' again and again, each time within a minute: it "
                "is not recycled for that in the next %g s. Where its requests need so much memory, raise 'max_rss'",
                instance.name, instance.version.name, verdict.pause_s,
            )  # fmt: skip

    def _replace(self, served: ServedVersion, instance: Instance, why: str) -> bool:
        """Begin to replace an instance; returns whether that was possible."""
        self._retry_s[instance.number] = self._loop.now_s() + RETRY_S
        try:
            is_replaced = served.replace(instance)
        except ShoalError as error:
            _log.error("instance '%s' of model '%s' cannot be recycled: %s", instance.name, served.version.name, error)
            return False
        if is_replaced:
            _log.info(
                "instance '%s' (pid %d) of model '%s' is recycled: %s",
                instance.name, instance.pid, served.version.name, why,
            )  # fmt: skip
        else:
            del self._retry_s[instance.number]  # the version is busy with another change: the next check tries again
        return is_replaced


def _name_of(instance: Instance) -> tuple[int, str]:
    return instance.version.model_id, instance.name


def _memory(rss_bytes: int, limits: RecyclingLimits) -> str:
    return f"it has {rss_bytes // _MIB} MiB of memory, the model's 'max_rss' is {limits.max_rss_bytes // _MIB} MiB"
