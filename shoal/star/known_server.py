"""What a process knows of the server that it is part of: its name, whether it serves, its models and their counters.

Front ends know more (frontend/state.py); the supervisor makes one of these to answer guests. metadata.py, statistics.py
and readiness.py read it.
"""

from dataclasses import dataclass, field

from shoal.errors import UnavailableError
from shoal.shm.counters import ZERO_ROW, CounterTableView, RowView
from shoal.star.models import ModelEntry, ModelTable

#: The protocol Shoal speaks is that of this Triton release; clients parse the version as 2.xx.y.
PROTOCOL_VERSION = "2.73.0"


@dataclass(slots=True)
class KnownServer:
    """The first three are settings; the others change while the server runs."""

    server_id: str = "triton"  # Triton's default
    version: str = PROTOCOL_VERSION
    strict_readiness: bool = True
    has_repositories: bool = True  # False: they could not be read at the start, and nothing is served
    started: bool = False
    exiting: bool = False
    counters: CounterTableView | None = None
    models: ModelTable = field(default_factory=ModelTable)

    @property
    def allows_regions(self) -> bool:
        """Whether requests may name shared memory that their client has registered (Triton's system shared memory)."""
        return False

    def require_ready(self) -> None:
        """Raise UnavailableError where Triton asks for a server that has started and is not stopping."""
        if self.exiting or not (self.started and self.has_repositories):
            raise UnavailableError("Server not ready")

    def read_counters(self, entry: ModelEntry) -> RowView:
        """A version's figures; zeros for one that has no row."""
        if self.counters is None or entry.row < 0:
            return ZERO_ROW
        return self.counters.read(entry.row)
