"""The arguments of `infer` and `stream`, for every kind of client. Pure."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import index
from typing import Any, Concatenate, ParamSpec, SupportsIndex, TypeVar

from shoal.deterministic import alone_flag
from shoal.errors import InvalidArgumentError
from shoal.request import Parameters

#: Triton's flags of a sequence's requests.
_START, _END = 1, 2
#: A timeout of 142 years, in µs: the longest one for which a time in ns, also one since 1970, fits into 64 bits.
_NEVER_US = 2**52
_NEVER_S = _NEVER_US / 1e6
_MAX_INT64 = 2**63 - 1
_MAX_DIMS = 32  # of arrays, in every version of numpy
_SECONDS = frozenset([float, int])  # the types of a timeout that is used as it is
_LISTS = frozenset([type(None), list, tuple])  # of `outputs`
_VERSIONS = frozenset([str, int])  # of a version: True would find the template of a request to version 1


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
        """Whether the request has no parameters, request id or sequence, and `check` would change and refuse nothing
        but model and names."""
        return (
            (self.parameters is None or (type(self.parameters) is dict and not self.parameters))
            and type(self.version) in _VERSIONS
            and type(self.request_id) is str
            and not self.request_id
            and type(self.sequence_id) is type(self.priority) is int
            and not (self.sequence_id or self.priority >> 63)
            and (self.timeout is None or (type(self.timeout) in _SECONDS and 0 <= self.timeout <= _NEVER_S))
            and type(self.outputs) in _LISTS
            and type(self.copy) is type(self.timing) is bool
        )

    def check(self) -> None:
        """Convert what Python's, numpy's and other types of numbers, texts and lists have in common to the types that
        requests carry. Raises InvalidArgumentError, which names the argument, for anything that no request carries."""
        checked_text("model", self.model)
        if not isinstance(self.inputs, Mapping):
            raise InvalidArgumentError(f"'inputs' must be a dict of arrays by name, not {_kind(self.inputs)}")
        for name in self.inputs:
            checked_text("inputs", name)
        self.outputs = _names("outputs", self.outputs)
        self.version = version_text(self.version)
        if self.timeout is not None:
            self.timeout = checked_timeout(self.timeout)
        request_id: Any = self.request_id
        self.request_id = "" if request_id is None else checked_text("request_id", request_id)
        # The batcher disconnects a client in shared memory whose priority has more bits (batcher/guests.py).
        self.priority = _number("priority", self.priority, 63)
        sequence_id: Any = self.sequence_id
        if isinstance(sequence_id, str):
            self.sequence_id = checked_text("sequence_id", sequence_id) or 0
        else:
            has_none = sequence_id is None or (isinstance(sequence_id, float) and not sequence_id)
            number: Any = 0 if has_none else sequence_id
            self.sequence_id = _number("sequence_id", number, 64)
        self.parameters = sent_parameters(self.parameters)
        for name in ("sequence_start", "sequence_end", "copy", "timing"):
            setattr(self, name, _truth(name, getattr(self, name)))

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
        return self.sequence_id

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
        return checked_text("version", version)
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise InvalidArgumentError(f"a version is a number, or its text as '2', not {_kind(version)}")
    return str(_number("version", version, 64))


def checked_text(name: str, value: str) -> str:
    """The value of the argument `name`. Raises InvalidArgumentError for a value that is no text, or has no UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"'{name}' must be text, not {_kind(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"'{name}' has no UTF-8: {error}") from None
    return value


def checked_timeout(timeout: float) -> float:
    """A timeout in seconds, at most 142 years; below 0 if it is over. Raises InvalidArgumentError for what is no
    number."""
    try:
        if isinstance(timeout, (str, bytes)) or (seconds := float(timeout)) != seconds:
            raise ValueError
    except OverflowError:
        return _NEVER_S if timeout > 0 else -_NEVER_S
    except (TypeError, ValueError):
        shown = "NaN" if isinstance(timeout, float) else _kind(timeout)
        raise InvalidArgumentError(f"'timeout' must be a number of seconds, not {shown}") from None
    return min(max(seconds, -_NEVER_S), _NEVER_S)


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of Python's int. Raises InvalidArgumentError for what is no sequence of integers."""
    try:
        dims = tuple(map(index, shape))
    except TypeError:
        raise InvalidArgumentError(f"'shape' must be a list of integers, as [1, 16], not {shape!r:.80}") from None
    if len(dims) > _MAX_DIMS:
        raise InvalidArgumentError(f"'shape' has {len(dims)} dimensions, at most {_MAX_DIMS} are possible")
    return dims


def _names(argument: str, names: Sequence[str] | None) -> list[str] | None:
    """Several names, from any iterable but a text. Raises InvalidArgumentError for anything else."""
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise InvalidArgumentError(f"'{argument}' must be a list of names, not {_kind(names)}")
    return [checked_text(argument, each) for each in names]


def _truth(name: str, value: object) -> bool:
    try:
        return bool(value)
    except ValueError:  # such as an array
        raise InvalidArgumentError(f"'{name}' must be true or false, not {_kind(value)}") from None


def _kind(value: object) -> str:
    return type(value).__name__


def _number(name: str, value: SupportsIndex, num_bits: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise InvalidArgumentError(f"'{name}' must be an integer, not {_kind(value)}") from None
    if not 0 <= number < 1 << num_bits:
        raise InvalidArgumentError(f"'{name}' is {_shown(number)}, must be from 0 to 2^{num_bits} - 1")
    return number


def _shown(value: int) -> str:
    """A number for an error message: Python refuses to write numbers of more than 4300 digits."""
    return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"


def sent_parameters(parameters: Parameters | None) -> Parameters:
    """Request parameters as every kind of client sends them: an integer beyond int64 becomes a double, as Triton reads
    it from JSON. Raises InvalidArgumentError for a value that cannot be a parameter."""
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise InvalidArgumentError(f"'parameters' must be a dict of values by name, not {_kind(parameters)}")
    return {checked_text("parameters", name): _sent(name, value) for name, value in parameters.items()}


def _sent(name: str, value: str | int | float | bool) -> str | int | float | bool:
    if isinstance(value, str):
        return checked_text(f"parameters['{name}']", value)
    if not isinstance(value, (int, float)):  # Triton's sentence
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
