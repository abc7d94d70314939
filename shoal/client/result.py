"""The result of `infer` and `stream`, for every kind of client."""

from collections.abc import Mapping

from shoal.client.arrays import Array
from shoal.request import Parameters
from shoal.timing import Timing


class Result(dict[str, Array]):
    """The outputs of a response: arrays by name, with the shapes of the response; BYTES tensors have dtype object, BF16
    tensors uint16.

    With copy=True the arrays are the caller's own. With copy=False they are read-only and lie in the server's memory,
    which is given back when no array over it is left; `with` and `close` drop the arrays in the result. Keep such
    results no longer than needed: beyond 64 MiB, or 256 results, further ones are copies, too, and if a model gets no
    memory elsewhere for two seconds, the server closes the connection of the client that holds most.
    """

    __slots__ = ("model_name", "model_version", "parameters", "timing")

    def __init__(
        self, model: str, version: str, arrays: Mapping[str, Array], parameters: Parameters,
        timing: Timing | None = None,
    ) -> None:  # fmt: skip
        super().__init__(arrays)
        self.model_name = model
        self.model_version = version
        self.parameters = parameters  # the response's parameters, by name
        #: Where the time of the request went, in ns, if the request was made with timing=True. The last phase ends when
        #: the result is made.
        self.timing = timing

    def close(self) -> None:
        """Drop the arrays of this result."""
        self.clear()

    def __enter__(self) -> "Result":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
