"""The trace that an open request is part of, and the number of the trace's children that are sent to its front end.

Values, made by `open_requests.py`. Live in the batcher.
"""

from typing import NamedTuple

from shoal.shm.layout import MAX_UNREAD_CHILD_TRACES

#: Most children sent of one trace (ours: with their spans they fit into the OpenTelemetry SDK's queue of 2048).
MAX_CHILDREN = 1000
#: How much of MAX_CHILDREN and of MAX_UNREAD_CHILD_TRACES is kept for the requests that end last (ours): parents of
#: children that were sent, and decoupled steps whose responses began other steps.
NUM_KEPT = 100


class TraceRoot:
    """A client's traced request, by its `key`. Requests made for this request, directly or through others, are its
    children."""

    __slots__ = ("_num_sent", "_parents", "is_shown", "key", "trace_id")

    def __init__(self, key: int, *, is_shown: bool = False, trace_id: tuple[int, int] = (0, 0)) -> None:
        self.key = key
        #: Whether the client is sent the request's EXECUTION, too.
        self.is_shown = is_shown
        self.trace_id = trace_id  # of the client's trace, two words, the high one first; 0: not known
        # Changed by note_sent: the number of children that were sent, and the keys of their parents.
        self._num_sent = 0
        self._parents = set[int]()

    def room(self, key: int, *, is_decoupled_step: bool = False) -> tuple[int, int]:
        """The bounds when the child `key` has ended: how many more children of this trace may be sent, and how many
        CHILD_TRACE records may be unread before the child's."""
        num_kept = 0 if is_decoupled_step or key in self._parents else NUM_KEPT
        return MAX_CHILDREN - num_kept - self._num_sent, MAX_UNREAD_CHILD_TRACES - num_kept

    def note_sent(self, parent: int) -> None:
        """Count a child that was sent; `parent` is the key of the request for which the child was made."""
        self._num_sent += 1
        self._parents.add(parent)


class TraceParent(NamedTuple):
    """The trace that an open request is part of. `parent` is the key of the request for which this one was made; 0:
    none."""

    root: TraceRoot
    parent: int
