"""What every client answers with."""

from collections.abc import Mapping

from shoal.client.arrays import Array
from shoal.request import Parameters


class Result(dict[str, Array]):
    """The outputs of a response by name, as arrays.

    With copy=True they are the caller's own. With copy=False they are read-only and lie in the server's memory, which
    goes back to it when no array over it is left; `with` and `close` drop those that this has. Keep such results no
    longer than needed: beyond 64 MiB they are copies, too, and where a model can have no other memory for two seconds,
    the server closes the connection of the client that holds most.
    """

    __slots__ = ("model_name", "model_version", "parameters")

    def __init__(self, model: str, version: str, arrays: Mapping[str, Array], parameters: Parameters) -> None:
        super().__init__(arrays)
        self.model_name = model
        self.model_version = version
        self.parameters = parameters  # what the model says beside its outputs

    def close(self) -> None:
        """Drop the arrays."""
        self.clear()

    def __enter__(self) -> "Result":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
