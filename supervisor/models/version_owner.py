"""What a version reports, and to whom: the model that it belongs to. Pure; runs in the supervisor."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.supervisor.models.served import Served

#: Called once, with what went wrong or None.
Outcome = Callable[[ShoalError | None], None]


class Owner(Protocol):
    """The owner of a version: its model, which is called back when the version's state changes."""

    def on_ready(self, served: "Served") -> None:
        """All its instances have come up."""
        ...

    def on_load_failed(self, served: "Served", error: ShoalError) -> None:
        """It cannot be loaded; it is UNAVAILABLE, and ending."""
        ...

    def on_changed(self, served: "Served") -> None:
        """Its state, or how many of its instances are up, is another."""
        ...

    def on_over(self, served: "Served") -> None:
        """Nothing is left of it."""
        ...
