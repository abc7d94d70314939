"""The recorder's process: what it and the batcher are told of a recording. Runs in the supervisor."""

from collections.abc import Sequence

from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import LogSettings
from shoal.messages.to_batcher import RecordingChanged, RecordingMade
from shoal.messages.to_recorder import BoundChanged, RecorderWelcomed, RequestsLost
from shoal.recording_settings import RecordLimits, RecordRule
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.ring_reader import RingReaderProcess

#: Bytes of a ring (ours): what a server of 10,000 small requests a second leaves in six seconds. Pages are taken as
#: they are written to.
RING_NBYTES = 64 << 20


class RecorderProcess(RingReaderProcess):
    """The recorder's process and its successors."""

    def __init__(self, loop: EventLoop, control_address: str, log_settings: LogSettings, star: Star) -> None:
        super().__init__(
            loop, control_address, log_settings, star, "recorder", "shoal.recorder.main", RING_NBYTES, gives_way=False
        )
        # Changed by record: where requests go, and what is left out.
        self.folder = ""
        self.limits = RecordLimits()
        #: Requests that recorders could not write. Changed by their messages.
        self.num_lost = 0

    def record(self, folder: str, limits: RecordLimits, rules: Sequence[RecordRule]) -> None:
        """Record from now on as these rules say; the first rule starts the process. Raises OutOfSharedMemoryError."""
        self.folder = folder
        self._star.payloads.are_recorded = bool(rules)
        if limits != self.limits:
            self.limits = limits
            if self.member is not None:
                self.member.send(BoundChanged(limits.max_bytes))
        self._follow(rules)

    def _ring_made(self, segment_fd: int, readers_fd: int) -> RecordingMade:
        return RecordingMade(segment_fd, readers_fd)

    def _rules_changed(self) -> RecordingChanged:
        return RecordingChanged([tuple(rule) for rule in self.rules])

    def _handlers(self) -> Handlers:
        return table(on(RequestsLost, self._on_lost))

    def _on_lost(self, message: RequestsLost) -> None:
        self.num_lost += message.number

    def _welcome(self) -> RecorderWelcomed:
        limits = self.limits
        return RecorderWelcomed(self.log_settings, self.folder, limits.max_bytes, limits.max_age_s, list(limits.redact))
