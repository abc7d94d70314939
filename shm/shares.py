"""A client's places for requests in flight, and the bytes of its slab, divided among models. Pure.

The rule is that of dynamic thresholds for the shared buffer of a switch (Choudhury and Hahne, 1998): a model may take
more while it holds less than WEIGHT times what is free. So a single busy model gets most, several busy models get equal
shares, and something always stays free for a model that holds little. The number of busy models need not be known.
While much is free the rule refuses nothing, so a port counts by model only while little is free.
"""

from shoal.errors import UnavailableError

#: Requests that may be in flight for all models together, as a multiple of one model's limit (ours: three models at
#: their limits leave a fourth of the places free).
MODELS_AT_ONCE = 4
#: A model may hold this many times as much as is free (ours): a single busy model two thirds of the whole; each of k
#: busy models 2 / (2 k + 1), and 1 / (2 k + 1) stays free.
WEIGHT = 2
#: Replies that a client may hold, per request that one model may have in flight (ours). With the default of 1024 such
#: requests these are 8192 replies: 256 streams may stall at once, since each has up to 32 unread replies.
HELD_PER_REQUEST = 8
#: Records of a client's ring per request that one model may have in flight. Each request in flight may need five: its
#: REQUEST, its TRACE, two CANCELs and, for a successor, the REQUEST once more. Each held reply needs one: its RELEASE
#: or, for a successor, its HOLD.
RECORDS_PER_REQUEST = 5 * MODELS_AT_ONCE + HELD_PER_REQUEST
#: Records that a ring which may still be widened (ring.py) has for each place, of a request in flight or a held reply:
#: five for the request, one for the RELEASE of the held reply, and one for the RELEASE of a reply beyond those
#: that may be held.
RECORDS_PER_PLACE = 7


class NoRoomError(UnavailableError):
    """No block, or no place, is free for a request to `model` until a reply has come or was released."""

    retry_after_s = 1

    def __init__(self, model: int) -> None:
        super().__init__("Exceeds maximum queue size")
        self.model = model


def may_take(held: int, free: int) -> bool:
    """Whether a model that holds `held` may take more while `free` are free."""
    return held < WEIGHT * free


def least_ample(total: int) -> int:
    """The smallest part of `total` that must be free so that `may_take` refuses no model, however much of the rest that
    model holds."""
    return total // (WEIGHT + 1) + 1


class Shares:
    """Counts of each model's requests in flight and of the bytes of their blocks."""

    def __init__(self) -> None:
        # Changed by add and remove: by model, number of requests, and bytes of their blocks.
        self._num_requests: dict[int, int] = {}
        self._nbytes: dict[int, int] = {}

    def add(self, model: int, nbytes: int) -> None:
        """Count a request of a model, in a block of `nbytes`."""
        self._num_requests[model] = self._num_requests.get(model, 0) + 1
        self._nbytes[model] = self._nbytes.get(model, 0) + nbytes

    def remove(self, model: int, nbytes: int) -> None:
        """Take an answered request out of the counts."""
        self._nbytes[model] -= nbytes
        self._num_requests[model] -= 1
        if not self._num_requests[model]:
            del self._num_requests[model], self._nbytes[model]

    def num_requests(self, model: int) -> int:
        """Requests of a model that are in flight."""
        return self._num_requests.get(model, 0)

    def has_place(self, model: int, num_free: int) -> bool:
        """Whether a model may have one request more while `num_free` places are free."""
        return may_take(self._num_requests.get(model, 0), num_free)

    def has_memory(self, model: int, free_nbytes: int) -> bool:
        """Whether a model may have one block more while `free_nbytes` of the slab are free."""
        return may_take(self._nbytes.get(model, 0), free_nbytes)
