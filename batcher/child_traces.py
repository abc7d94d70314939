"""Which trace an open request is part of, and how much of that trace its front end is sent.

Values; `open_requests.py` makes them. Live in the batcher.
"""

from typing import NamedTuple

from shoal.shm.layout import MAX_UNREAD_CHILD_TRACES

#: Children of one trace that are sent (ours: with their spans they fit into the OpenTelemetry SDK's queue of 2048).
MAX_CHILDREN = 1000
#: Of each bound, what is kept for children that others which were sent are below, and for decoupled steps, whose
#: responses other steps were made of (ours): such a one ends last.
NUM_KEPT = 100


class TraceRoot:
    """A traced request of a client, by its `key`; the requests made for it are its children, and theirs are, too."""

    __slots__ = ("_num_sent", "_parents", "key")

    def __init__(self, key: int) -> None:
        self.key = key
        # Changed by note_sent.
        self._num_sent = 0
        self._parents = set[int]()

    def room(self, key: int, *, is_decoupled_step: bool = False) -> tuple[int, int]:
        """How many more children may be sent where this one has ended, and how many may be unread before it."""
        num_kept = 0 if is_decoupled_step or key in self._parents else NUM_KEPT
        return MAX_CHILDREN - num_kept - self._num_sent, MAX_UNREAD_CHILD_TRACES - num_kept

    def note_sent(self, parent: int) -> None:
        """A child was sent; `parent` is the key of the one it is below."""
        self._num_sent += 1
        self._parents.add(parent)


class TraceParent(NamedTuple):
    """Which trace an open request is part of. `parent` is the key of the request that it was made for; 0 for the root
    itself."""

    root: TraceRoot
    parent: int
