"""The properties of a request that a port needs to submit it, as protocols; the classes are in other layers."""

from typing import Protocol


class NumberedModel(Protocol):
    """A model version, known by its number."""

    @property
    def model_id(self) -> int: ...


class CheckedRequest(Protocol):
    """A request that has passed its model's validation: the version, the number of rows, and the shape key, which
    is equal for requests that may be in one batch."""

    @property
    def entry(self) -> NumberedModel: ...
    @property
    def rows(self) -> int: ...
    @property
    def shape_key(self) -> int: ...


class SchedulingHints(Protocol):
    """A client's scheduling parameters for a request; 0 = not given."""

    @property
    def priority(self) -> int: ...
    @property
    def timeout_us(self) -> int: ...
    @property
    def correlation_id(self) -> int | str: ...
    @property
    def flags(self) -> int: ...
