"""The arguments of `infer` and `stream`, for every kind of client. Pure."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import index
from typing import Any, Concatenate, ParamSpec, SupportsIndex, TypeVar

from shoal.deterministic import alone_flag
from shoal.errors import InvalidArgumentError
from shoal.request import Parameters

#: Triton's flags of a sequence's requests.
_START, _END = 1, 2
#: A timeout of 285 years, in µs: the longest one that also fits into a request's record in ns.
_NEVER_US = 2**53
_MAX_INT64 = 2**63 - 1


@dataclass(slots=True)  # made for each request: a frozen class would take twice as long
class RequestArguments:
    """The arguments of one request. `outputs` None means all; an empty `version` means the model's default version, any
    other may be a number or its text.

    An input is an array of the datatype and shape that `model_metadata` names, the batch dimension included; strings
    are arrays of bytes or str, BF16 are uint16. Other values, such as lists, are converted.
    """

    model: str
    inputs: Mapping[str, Any]
    outputs: Sequence[str] | None = None
    _: KW_ONLY
    version: str | int = ""
    timeout: float | None = None  # seconds; None: the server's --request-timeout-secs
    parameters: Parameters | None = None
    request_id: str = ""
    priority: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    copy: bool = True  # False: outputs are read-only views of the server's memory if it is shared (see Result)
    timing: bool = False  # the result says where the request's time went (Result.timing)

    @property
    def is_plain(self) -> bool:
        """Whether the request has no parameters, request id or sequence, and a valid priority."""
        return not (
            self.parameters
            or self.request_id
            or self.sequence_id
            or type(self.priority) is not int
            or self.priority >> 63
        )

    def check_numbers(self) -> None:
        """Convert the priority and a sequence's number to Python's int, since they may be numpy's. Raises
        InvalidArgumentError for a number that a request cannot carry."""
        # The batcher disconnects a client in shared memory whose priority has more bits (batcher/guests.py).
        self.priority = _number("priority", self.priority, 63)
        if not isinstance(self.sequence_id, str):
            self.sequence_id = _number("sequence_id", self.sequence_id or 0, 64)

    @property
    def timeout_us(self) -> int:
        """The timeout for a request's record, in µs; 0 if there is none."""
        return 0 if self.timeout is None else max(1, int(min(self.timeout * 1e6, _NEVER_US)))

    def answer_by_ns(self, now_ns: int) -> int:
        """The monotonic time in ns after which the answer to a request that is sent at `now_ns` is useless; 0: no
        limit."""
        return 0 if self.timeout is None else now_ns + self.timeout_us * 1000

    @property
    def correlation_id(self) -> int | str:
        """The sequence's id, under the name that it has in Triton's core; 0 without a sequence."""
        return self.sequence_id or 0  # a request without a sequence may have None, "" or numpy's 0

    @property
    def flags(self) -> int:
        """Triton's flags of a request in a sequence, with ALONE (shoal/deterministic.py) if the request is to run
        alone. Raises InvalidArgumentError for a parameter `deterministic` that is neither true nor false."""
        flags = (_START if self.sequence_start else 0) | (_END if self.sequence_end else 0)
        return flags | alone_flag(self.parameters) if self.parameters else flags


def version_text(version: str | int) -> str:
    """A version as text, as the server takes it; "" means the default version. Raises InvalidArgumentError for a
    version that is neither a text nor an integer."""
    if isinstance(version, str):
        return version
    if isinstance(version, bool) or not isinstance(version, int):
        raise InvalidArgumentError(f"a version is a number, or its text as '2', not {type(version).__name__}")
    return str(version)


def _number(name: str, value: SupportsIndex, num_bits: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise InvalidArgumentError(f"'{name}' must be an integer, not {type(value).__name__}") from None
    if not 0 <= number < 1 << num_bits:
        raise InvalidArgumentError(f"'{name}' is {_shown(number)}, must be from 0 to 2^{num_bits} - 1")
    return number


def _shown(value: int) -> str:
    """A number for an error message: Python refuses to write numbers of more than 4300 digits."""
    return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"


def sent_parameters(parameters: Parameters | None) -> Parameters:
    """Request parameters as every kind of client sends them: an integer beyond int64 becomes a double, as Triton reads
    it from JSON. Raises InvalidArgumentError for a value that cannot be a parameter."""
    return {name: _sent(name, value) for name, value in parameters.items()} if parameters else {}


def _sent(name: str, value: str | int | float | bool) -> str | int | float | bool:
    if not isinstance(value, (str, int, float)):  # Triton's sentence
        raise InvalidArgumentError(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    if not isinstance(value, int) or ~_MAX_INT64 <= value <= _MAX_INT64:
        return value
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(f"parameter '{name}' is a number beyond every datatype") from None


_P = ParamSpec("_P")
_Asker = TypeVar("_Asker")
_Answer = TypeVar("_Answer")


def takes(
    asked: Callable[_P, RequestArguments],
) -> Callable[[Callable[[_Asker, RequestArguments], _Answer]], Callable[Concatenate[_Asker, _P], _Answer]]:
    """Turn a method with one `RequestArguments` argument into a method with the arguments of `RequestArguments`."""

    def decorate(method: Callable[[_Asker, RequestArguments], _Answer]) -> Callable[Concatenate[_Asker, _P], _Answer]:
        @functools.wraps(method)
        def ask(self: _Asker, /, *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
            return method(self, asked(*args, **kwargs))

        own, given = inspect.signature(method), inspect.signature(asked)
        (asker, _), returned = own.parameters.values(), own.return_annotation
        shown = own.replace(parameters=[asker, *given.parameters.values()], return_annotation=returned)
        ask.__signature__ = shown  # type: ignore[attr-defined] # shown by help() and editors
        return ask

    return decorate
