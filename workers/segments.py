"""The segments of other processes that a worker's requests may lie in: announced ones, and those it asks for.

Front ends' are announced, but no front end waits until this worker, which may be executing, has mapped them. So a
segment that a request names and that is not known is asked for, be it a front end's, a large payload's, a guest's, or
that of a worker whose model lends tensors to others. Runs in a worker; opened by the thread that runs its loop,
announced by whichever listens.
"""

import select
import time
from collections.abc import Callable

from shoal.control import Channel
from shoal.messages.shared import SegmentWanted
from shoal.shm.layout import OWNER_SHIFT, LayoutError, ref_owner
from shoal.shm.segment import SegmentView
from shoal.shm.slab import SlabView

#: Another thread may take the message that one waits for: look after so long whether it has (ours).
_LOOK_MS = 10


def listen_until(is_done: Callable[[], bool], channel: Channel, listen: Callable[[], None], wait_s: float) -> None:
    """Have `listen` obey the next message of the channel, again and again, until `is_done` or for `wait_s`.

    The thread that runs the worker's loop and those of response senders may wait here at once.
    """
    deadline_s = time.monotonic() + wait_s
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while not is_done() and (left_s := deadline_s - time.monotonic()) > 0:
        if poller.poll(min(left_s * 1000, _LOOK_MS)):
            listen()


#: How long the supervisor may take to lend a segment (ours; usual is a millisecond).
BORROW_WAIT_S = 10.0


class Segments:
    """By owner id."""

    def __init__(self) -> None:
        # Set by connect: where to ask, and how the supervisor's next message is obeyed.
        self._channel: Channel | None = None
        self._listen: Callable[[], None] = lambda: None
        # Changed by add and remove; by open, which owner is being asked for (0 = none).
        self._views: dict[int, SlabView] = {}
        self._guests: dict[int, int] = {}  # of those that guests write: whose they are
        self._wanted = 0

    def connect(self, channel: Channel, listen: Callable[[], None]) -> None:
        """From now on segments that are not known can be asked for."""
        self._channel, self._listen = channel, listen

    def has(self, owner: int) -> bool:
        """Whether that segment is known; each owner id is one segment's until `remove`."""
        return owner in self._views

    def add(self, owner: int, view: SegmentView) -> None:
        """Requests may lie in that segment from now on."""
        self._views[owner] = SlabView(view)
        self._settle(owner)

    def add_guests(self, owner: int, guest: int, fd: int) -> None:
        """Requests of a guest may lie there; takes the descriptor. It may have written over the head of the segment:
        then nothing can be read in it."""
        self._guests[owner] = guest
        try:
            self.add(owner, SegmentView.attach(fd))
        except LayoutError:
            self._settle(owner)

    def remove(self, owner: int) -> None:
        """Forget a segment whose owner is gone, or was never there; requests that lie there fail."""
        self._views.pop(owner, None)
        self._guests.pop(owner, None)
        self._settle(owner)

    def open(self, ref: int) -> memoryview | None:
        """A block of another process, read-only; None where it is stale or its owner is gone."""
        owner = ref >> OWNER_SHIFT
        view = self._views.get(owner) or self._borrow(owner)
        return view.open(ref) if view is not None else None

    def open_lent(self, ref: int, borrower: int) -> memoryview | None:
        """Open a block that a request in the block `borrower` names; a guest's request can only name the guest's
        own."""
        block = self.open(ref)
        guest = self._guests.get(ref_owner(borrower), 0)
        return block if not guest or self._guests.get(ref_owner(ref)) == guest else None

    def _borrow(self, owner: int) -> SlabView | None:
        if self._channel is None:
            return None
        self._wanted = owner
        self._channel.send(SegmentWanted(owner))
        listen_until(lambda: not self._wanted, self._channel, self._listen, BORROW_WAIT_S)
        return self._views.get(owner)

    def _settle(self, owner: int) -> None:
        if owner == self._wanted:
            self._wanted = 0
