"""The segments of other processes in which a worker's requests may lie: those that the supervisor announces, and those
that the worker requests.

Front ends' segments are announced, but no front end waits until this worker, which may be executing a batch, has mapped
them. So the worker requests each unknown segment that a request names, be it a front end's, one of a large payload, a
guest's, or that of a worker whose model lends tensors to other models. Runs in a worker; the loop's thread opens
blocks, any thread that receives messages adds segments.
"""

import select
import time
from collections.abc import Callable

from shoal.control import Channel
from shoal.messages.shared import SegmentWanted
from shoal.shm.layout import OWNER_SHIFT, LayoutError, ref_owner
from shoal.shm.segment import SegmentView
from shoal.shm.slab import SlabView

#: The pause in ms after which a waiting thread checks again whether another thread has received its message (ours).
_LOOK_MS = 10


def listen_until(is_done: Callable[[], bool], channel: Channel, listen: Callable[[], None], wait_s: float) -> None:
    """Have `listen` apply the channel's messages until `is_done` returns True, for at most `wait_s` seconds.

    The thread of the worker's loop and threads with response senders may wait here at the same time.
    """
    deadline_s = time.monotonic() + wait_s
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while not is_done() and (left_s := deadline_s - time.monotonic()) > 0:
        if poller.poll(min(left_s * 1000, _LOOK_MS)):
            listen()


#: Seconds that the supervisor may take to send a requested segment; usually it takes a millisecond (ours).
BORROW_WAIT_S = 10.0


class Segments:
    """Mapped segments of other processes, by owner id."""

    def __init__(self) -> None:
        # Set by connect: the channel for requests, and the function that applies the supervisor's next message.
        self._channel: Channel | None = None
        self._listen: Callable[[], None] = lambda: None
        # Changed by add and remove; `_wanted`, the segment that is being requested (0 = none), is changed by open, too.
        self._views: dict[int, SlabView] = {}
        self._guests: dict[int, int] = {}  # owner id of a segment that a guest writes → the guest's number
        self._wanted = 0

    def connect(self, channel: Channel, listen: Callable[[], None]) -> None:
        """From now on, request unknown segments by this channel; `listen` applies its next message."""
        self._channel, self._listen = channel, listen

    def has(self, owner: int) -> bool:
        """Whether the segment with this owner id is mapped; the id means the same segment until `remove`."""
        return owner in self._views

    def add(self, owner: int, view: SegmentView) -> None:
        """From now on, let requests lie in a segment, whose mapping is `view`."""
        self._views[owner] = SlabView(view)
        self._settle(owner)

    def add_guests(self, owner: int, guest: int, fd: int) -> None:
        """Let requests of a guest lie in a segment; takes over the descriptor. A guest may have damaged the segment's
        header: then no request that lies in it can be read."""
        self._guests[owner] = guest
        try:
            self.add(owner, SegmentView.attach(fd))
        except LayoutError:
            self._settle(owner)

    def remove(self, owner: int) -> None:
        """Forget a segment whose owner is gone, or never existed; requests that lie in it fail."""
        self._views.pop(owner, None)
        self._guests.pop(owner, None)
        self._settle(owner)

    def open(self, ref: int) -> memoryview | None:
        """A block of another process, as read-only bytes; None if the reference is stale or the block's owner is gone.
        The block still belongs to its owner, which may free it."""
        owner = ref >> OWNER_SHIFT
        view = self._views.get(owner) or self._borrow(owner)
        return view.open(ref) if view is not None else None

    def open_lent(self, ref: int, borrower: int) -> memoryview | None:
        """A block that a request in the block `borrower` names; None if it is gone, or if the request is a guest's and
        the named block is not the same guest's."""
        block = self.open(ref)
        guest = self._guests.get(ref_owner(borrower), 0)
        return block if not guest or self._guests.get(ref_owner(ref)) == guest else None

    def is_guests(self, ref: int) -> bool:
        """Whether the block `ref` lies in a segment that a guest writes."""
        return bool(self._guests) and ref_owner(ref) in self._guests

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
