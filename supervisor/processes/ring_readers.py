"""The processes that read batchers' rings, together: the recorder and the comparator. Runs in the supervisor."""

from shoal.messages.message import Handlers, on, table
from shoal.messages.to_comparator import ComparatorConnected
from shoal.messages.to_recorder import RecorderConnected
from shoal.supervisor.processes.comparator import ComparatorProcess
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.recorder import RecorderProcess


class RingReaders:
    """What the supervisor does with both alike."""

    def __init__(self, recorder: RecorderProcess, comparator: ComparatorProcess) -> None:
        self._recorder = recorder
        self._comparator = comparator

    def configure_log(self) -> None:
        """Send both the changed log settings."""
        self._recorder.configure_log()
        self._comparator.configure_log()

    def join_batcher(self, batcher: Member) -> None:
        """Give a batcher its rings and rules; before it is sent models. Raises OutOfSharedMemoryError."""
        self._recorder.join_batcher(batcher)
        self._comparator.join_batcher(batcher)

    def join_handlers(self, member: Member) -> Handlers:
        """The handlers of the first message of either process."""
        return table(
            on(RecorderConnected, lambda _message: self._recorder.join(member)),
            on(ComparatorConnected, lambda _message: self._comparator.join(member)),
        )

    async def close(self) -> None:
        """End both, after the last batcher: what it left in its rings has been read."""
        await self._comparator.close()
        await self._recorder.close()
