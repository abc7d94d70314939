"""A load of a model while it is under way: what was found, which versions are missing or have failed, its outcome.

Runs in the supervisor, as a part of the model that is loaded.
"""

from collections import Counter
from collections.abc import Callable

from shoal.errors import ShoalError
from shoal.repository.found import FoundModel
from shoal.supervisor.failure_domains import bound, own_error
from shoal.supervisor.models.served import Served
from shoal.supervisor.models.version_owner import Outcome


class Loading:
    """A load that is under way, and the failure domain of all that is done for it."""

    def __init__(self, found: FoundModel, outcome: Outcome, on_fault: Callable[["Loading", ShoalError], None]) -> None:
        self.found = found
        self._outcome: Outcome | None = bound(outcome)
        self._on_fault = on_fault
        # Changed as versions come up or fail.
        self.fresh: dict[int, Served] = {}
        self.is_change = False  # False: all versions serve already as they were found
        self.missing: set[int] = set()  # versions that have neither come up nor failed
        self.errors: dict[int, ShoalError] = {}
        self.num_tries: Counter[int] = Counter()

    @property
    def title(self) -> str:
        """For the log."""
        return f"the load of model '{self.found.identifier}'"

    def contain(self, error: Exception) -> None:
        """As a failure domain: an unexpected error fails this load; the versions that serve go on."""
        self._on_fault(self, own_error(error))

    def end(self, error: ShoalError | None) -> None:
        """Call the outcome, unless it has been called."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome(error)
