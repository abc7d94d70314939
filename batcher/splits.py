"""Splits: which version executes a request that names no version, while a model's requests are divided between two.

A split has a model id of its own, which clients put into such requests; the exchange knows no model of that id, so
requests of all other models cost nothing more. A request that the canary fails before the client has been sent any
response is executed by the stable version, from the client's block, which stays until the last reply. Lives in the
batcher.
"""

from collections.abc import Callable, Mapping

from shoal.batcher.peers import ScheduledModel, WorkerPeer
from shoal.batcher.scheduling.split import VersionFigures, is_chosen
from shoal.batcher.statistics import FALLEN_BACK
from shoal.latency_buckets import bucket
from shoal.messages.from_batcher import SplitFigures
from shoal.messages.to_batcher import SplitChanged
from shoal.reasons import Reason
from shoal.sequences import FLAGS, START, STICKY_SHIFT
from shoal.shm.layout import NUMBER_BITS

#: Reasons for which the stable version does not execute a request that ends at the canary: the client does not wait any
#: more, or may have been sent a response.
_FINAL = frozenset({Reason.CANCELLED, Reason.TAKEN_OVER, Reason.STOPPING, Reason.NO_MEMORY})


class Split:
    """The division of one model's requests that name no version."""

    __slots__ = ("canary", "canary_id", "id", "retries", "share", "stable", "stable_id", "step")

    def __init__(self, split_id: int) -> None:
        self.id = split_id
        # Changed by the supervisor's messages: the two versions' model ids, 0 for none; the canary's share of the
        # requests (scheduling/split.py); whether the stable version executes requests that the canary fails; the
        # rollout's step to which the figures belong.
        self.stable_id = self.canary_id = self.share = 0
        self.retries = True
        self.step = -1
        # Changed as requests end, and replaced at each step of the rollout.
        self.stable = VersionFigures()
        self.canary = VersionFigures()


class RoutedRequest:
    """A request that a canary has had since `since_ns` (monotonic); or a request that the stable version has, because
    the client sent it with the id of a split that was over. The replies to both name the version that answers."""

    __slots__ = ("has_failed", "is_cancelled", "model_id", "since_ns", "split")

    def __init__(self, split: Split, model_id: int, since_ns: int) -> None:
        self.split = split
        self.model_id = model_id
        self.since_ns = since_ns
        #: Whether the canary has answered the request with an error that the client has not been sent.
        self.has_failed = False
        self.is_cancelled = False


class Splits:
    """All splits by id, the requests that canaries have, and the requests that canaries have failed."""

    def __init__(
        self, models: Mapping[int, ScheduledModel], workers: Mapping[int, WorkerPeer], counted: set[ScheduledModel]
    ) -> None:
        """`counted`: models whose figures are published at the end of the step."""
        self._models = models
        self._workers = workers
        self._counted = counted
        #: Has a model's scheduler run in the next step; called with model id and monotonic ns. Set once.
        self.wake_later: Callable[[int, int], None] = lambda _model_id, _now_ns: None
        # Changed by `change`: the splits by their model ids.
        self._splits: dict[int, Split] = {}
        # Changed as requests come and end. By key: the requests that a canary has; the splits of requests that a canary
        # has failed and the stable version has.
        self.routed: dict[int, RoutedRequest] = {}
        self.fallen_back: dict[int, Split] = {}

    def change(self, message: SplitChanged) -> list[ScheduledModel]:
        """Divide requests as a message says from now on; a new step of the rollout begins with new figures. Returns the
        canary that gets no more requests, if there is one."""
        split = self._splits.setdefault(message.model_id, Split(message.model_id))
        canary = self._models.get(split.canary_id)
        is_over = split.canary_id != message.canary_id or not message.share
        before = split.stable_id, split.canary_id
        split.stable_id, split.canary_id, split.share = message.stable_id, message.canary_id, message.share
        split.retries = message.retries
        if split.step != message.step:
            split.step, split.stable, split.canary = message.step, VersionFigures(), VersionFigures()
        if split.canary_id:
            for model_id in (split.stable_id, split.canary_id):
                self._mark(model_id, message.model_id)
        for model_id in before:
            self.settle(model_id)
        return [canary] if canary is not None and is_over else []

    def settle(self, model_id: int) -> None:
        """Stop counting a version's requests for a split once the version is in no split and has no open request that
        came by a split."""
        model = self._models.get(model_id)
        if model is None or not model.split_id:
            return
        split = self._splits.get(model.split_id)
        is_open = split is not None and split.canary_id != 0 and model_id in (split.stable_id, split.canary_id)
        has_routed = any(each.model_id == model_id for each in self.routed.values())
        if not (is_open or has_routed or any(each is split for each in self.fallen_back.values())):
            self._mark(model_id, 0)

    def _mark(self, model_id: int, split_id: int) -> None:
        model = self._models.get(model_id)
        if model is not None:
            model.split_id = split_id
            model.note_ends()

    def figures(self, split_id: int, now_ns: int) -> SplitFigures | None:
        """The figures of both versions since the rollout's step began, and how long the canary's open requests have
        waited. None for an unknown split."""
        split = self._splits.get(split_id)
        if split is None:
            return None
        waiting = [bucket(now_ns - each.since_ns) for each in self.routed.values() if each.model_id == split.canary_id]
        return SplitFigures(split_id, split.step, split.stable.packed(), split.canary.packed(), waiting)

    # --- requests as they arrive ---

    def choose(
        self, split_id: int, key: int, rows: int, correlation: int, flags: int, now_ns: int,
        holder: ScheduledModel | None,
    ) -> ScheduledModel | None:  # fmt: skip
        """The version that executes a request; None if there is no such split, or neither of its versions can execute
        the request.

        `holder` is the version that has the request from a dead batcher. A canary without an instance gets no request;
        each request that it would have got counts as failed by it.
        """
        split = self._splits.get(split_id)
        if split is None:
            return None
        stable, canary = self._models.get(split.stable_id), self._models.get(split.canary_id)
        if stable is None or stable.is_failed:
            stable = None
        if not split.canary_id:  # the split is over, but the client has not applied that change yet
            if stable is not None:
                self._mark(stable.id, split_id)
                self.routed[key] = RoutedRequest(split, stable.id, now_ns)
            return stable
        if canary is None or (
            stable is not None and holder is not canary and not _wants(split, canary, key, rows, correlation, flags)
        ):
            return stable
        if holder is not canary and (canary.is_failed or not self.is_up(canary)):
            split.canary.failed()
            if stable is not None:
                canary.row.add(FALLEN_BACK, 1)
                self._counted.add(canary)
            return stable
        self.routed[key] = RoutedRequest(split, canary.id, now_ns)
        return canary

    def is_up(self, model: ScheduledModel) -> bool:
        """Whether a version has an instance."""
        return any(worker.model is model for worker in self._workers.values())

    # --- requests as they end ---

    def fallback(self, routed: RoutedRequest, reason: int, correlation: int) -> ScheduledModel | None:
        """The stable version, if it is to execute a request that its canary fails; None if the request is to fail.

        `reason` is the batcher's reason to fail the request; 0 if the canary has answered it with an error. The stable
        version does not execute a request of a sequence, since it has not seen the requests before it.
        """
        split = routed.split
        stable = self._models.get(split.stable_id)
        if stable is None or stable.is_failed or stable.id == routed.model_id:
            return None
        if stable.sequences is not None and correlation:
            return None
        return None if not split.retries or routed.is_cancelled or reason in _FINAL else stable

    def note_fallen_back(self, key: int, split: Split, stable: ScheduledModel) -> None:
        """Note that the stable version has a request which the canary has failed."""
        self.fallen_back[key] = split
        self._mark(stable.id, split.id)

    def count(self, model: ScheduledModel, key: int, latency_ns: int, *, has_failed: bool) -> None:
        """Count an ended request that no canary had at its end: the request named a version of a split, or the stable
        version had it. A request that both versions fail does not count against the canary."""
        split_of_canary = self.fallen_back.pop(key, None)
        if split_of_canary is not None:
            if has_failed:
                split_of_canary.canary.num_requests += 1
            else:
                split_of_canary.canary.failed()
            self.settle(model.id)
            return
        split = self._splits.get(model.split_id)
        if split is not None and model.id == split.stable_id:
            if has_failed:
                split.stable.failed()
            else:
                split.stable.answered(latency_ns)

    def cancel(self, key: int) -> None:
        """Note that a request's client does not wait any more: the stable version need not execute the request."""
        routed = self.routed.get(key)
        if routed is not None:
            routed.is_cancelled = True

    def forget(self, key: int) -> None:
        """Forget a request that no version of the split answers."""
        self.routed.pop(key, None)
        self.fallen_back.pop(key, None)

    def forget_client(self, owner: int) -> None:
        for requests in (self.routed, self.fallen_back):
            for key in [key for key in requests if key >> NUMBER_BITS == owner]:
                del requests[key]

    def waiting(self, model: ScheduledModel) -> list[int]:
        """Keys of the requests that a canary has, in its queue or in execution."""
        return [key for key, routed in self.routed.items() if routed.model_id == model.id]


def _wants(split: Split, canary: ScheduledModel, key: int, rows: int, correlation: int, flags: int) -> bool:
    """Whether the canary is to execute a request. A sequence stays at the version at which it began."""
    if rows > canary.max_rows:
        return False
    if canary.sequences is not None and correlation and not flags & START:
        return canary.sequences.has(correlation)
    return is_chosen(flags >> STICKY_SHIFT or correlation or key, split.share)


def own_flags(flags: int) -> int:
    """The flags of a request's sequence, without its sticky key."""
    return flags & FLAGS
