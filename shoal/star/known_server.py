"""The server's state as one of its processes knows it: name, whether it serves, models and their counters.

Front ends know more (frontend/state.py); the supervisor makes one to answer guests. metadata.py, statistics.py and
readiness.py read it.
"""

from dataclasses import dataclass, field

from shoal.errors import UnavailableError
from shoal.shm.counters import ZERO_ROW, CounterTableView, RowView
from shoal.star.models import ModelEntry, ModelTable

#: The Triton release whose protocol Shoal speaks; clients parse the version as 2.xx.y.
PROTOCOL_VERSION = "2.73.0"


@dataclass(slots=True)
class KnownServer:
    """The server's state. The first three fields are settings; the others change while the server runs."""

    server_id: str = "triton"  # Triton's default
    version: str = PROTOCOL_VERSION
    strict_readiness: bool = True
    has_repositories: bool = True  # False: they could not be read at the start, and no model is served
    started: bool = False
    exiting: bool = False
    counters: CounterTableView | None = None
    models: ModelTable = field(default_factory=ModelTable)

    @property
    def num_region_kinds(self) -> int:
        """The number of kinds of registered regions that requests may name: 0, 1 for Triton's system shared memory
        alone, 2 with CUDA shared memory."""
        return 0

    def require_ready(self) -> None:
        """Raise UnavailableError where Triton requires a server that has started and is not stopping."""
        if self.exiting or not (self.started and self.has_repositories):
            raise UnavailableError("Server not ready")

    def read_counters(self, entry: ModelEntry) -> RowView:
        """The counters of a version; zeros for a version without a row."""
        if self.counters is None or entry.row < 0:
            return ZERO_ROW
        return self.counters.read(entry.row)
