"""The comparator's process: what it and the batcher are told of shadows. Runs in the supervisor."""

from collections.abc import Callable, Sequence

from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import LogSettings
from shoal.messages.to_batcher import ComparisonRingMade, ShadowsChanged
from shoal.messages.to_comparator import AnswersCompared, ComparatorWelcomed, ComparisonsChanged
from shoal.shadow import ShadowRule
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.ring_reader import RingReaderProcess

#: Bytes of a ring (ours): four pairs of the largest answers that are mirrored, or what small ones leave in some
#: seconds. Pages are taken as they are written to.
RING_NBYTES = 64 << 20


class ComparatorProcess(RingReaderProcess):
    """The comparator's process and its successors, behind all others in their turn for a core; `on_compared` is called
    with what it finds."""

    def __init__(
        self, loop: EventLoop, control_address: str, log_settings: LogSettings, star: Star,
        on_compared: Callable[[AnswersCompared], None],
    ) -> None:  # fmt: skip
        super().__init__(
            loop, control_address, log_settings, star, "comparator", "shoal.recorder.comparator", RING_NBYTES,
            gives_way=True,
        )  # fmt: skip
        self._on_compared = on_compared

    def mirror(self, rules: Sequence[ShadowRule]) -> None:
        """Mirror and compare from now on as these rules say; the first one starts the process. Raises
        OutOfSharedMemoryError or OSError, and changes nothing."""
        self._follow(rules)
        if self.member is not None:
            self.member.send(ComparisonsChanged([tuple(rule) for rule in rules]))

    def _ring_made(self, segment_fd: int, readers_fd: int) -> ComparisonRingMade:
        return ComparisonRingMade(segment_fd, readers_fd)

    def _rules_changed(self) -> ShadowsChanged:
        return ShadowsChanged([tuple(rule) for rule in self.rules])

    def _welcome(self) -> ComparatorWelcomed:
        return ComparatorWelcomed(self.log_settings, [tuple(rule) for rule in self.rules])

    def _handlers(self) -> Handlers:
        return table(on(AnswersCompared, self._on_compared))
