"""The base of all control messages, and their encoding: msgpack, with file descriptors beside it.

    [name of the type, sequence number, field, field, …]      a descriptor's field says whether there is one

A receiver decodes only the types that it handles, and each field must have its declared type. Anything else is refused
with one error, whether from an untrusted client or from a process of the server. A message whose sequence number is not
0 is acknowledged once it has been applied. Pure: no socket, no clock.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    is_typeddict,
)

import msgpack

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: object) -> Callable[[type], type]:
        """Stands for the function of that name in `typing`, new in Python 3.11; only type checkers look at it."""
        return lambda kind: kind


#: A field that is a file descriptor. The sender keeps its own; the receiver owns the one that it gets.
Fd: TypeAlias = Annotated[int, "file descriptor"]


class MessageError(ValueError):
    """The bytes on a control connection are not a message that the receiver handles. `seq` is the sequence number that
    a receiver acknowledges if it goes on all the same; 0 where there is none."""

    def __init__(self, sentence: str, seq: int = 0) -> None:
        super().__init__(sentence)
        self.seq = seq


@dataclass_transform(frozen_default=True)
class Message:
    """A control message. Its annotations are its fields, in order; values of the class are their defaults.

    Raises TypeError if a field is missing, unknown, or given twice. A message is neither a NamedTuple nor a dataclass:
    these take ten and sixty times as long to define (50 and 360 µs), in each process that starts. Messages of two types
    are never equal.
    """

    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self.fields, values, strict=False)) | named
        missing = [name for name in self.fields if name not in given and name not in type(self).__dict__]
        if missing or len(given) != len(values) + len(named) or not given.keys() <= set(self.fields):
            raise TypeError(f"{type(self).__name__} consists of {self.fields}")
        self.__dict__.update(given)

    @property
    def values(self) -> list[Any]:
        return [getattr(self, name) for name in self.fields]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and type(other) is type(self) and other.values == self.values

    def __hash__(self) -> int:
        raise TypeError("a message's fields may be lists")

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in zip(self.fields, self.values, strict=True)]
        return f"{type(self).__name__}({', '.join(shown)})"


M = TypeVar("M", bound=Message)


class Kinds(Generic[M]):
    """The types of messages that a receiver decodes."""

    def __init__(self, *types: type[M]) -> None:
        self.types = {each.__name__: each for each in types}

    def __iter__(self) -> Iterator[type[M]]:
        return iter(self.types.values())

    def decode(self, body: bytes | memoryview, fds: Sequence[int]) -> tuple[M, int]:
        """A message and its sequence number; its descriptors are the caller's to close. Raises MessageError."""
        seq: Any = 0
        try:
            name, seq, *values = msgpack.unpackb(body, raw=False)
            kind = self.types[name]
            if len(values) != len(kind.fields):
                raise ValueError(f"{name} has {len(values)} fields, not {len(kind.fields)}")
            classes, fd_positions, records = _layout(kind)
            for field, value, accepted in zip(("seq", *kind.fields), (seq, *values), classes, strict=True):
                if accepted and type(value) not in accepted:
                    raise TypeError(f"{field} of {name} is of {type(value)}")
            for position, record in records:
                if values[position] is not None:
                    values[position] = record(*values[position])
            left = list(fds)
            for position in fd_positions:
                if values[position] is not None:
                    values[position] = left.pop(0)
            if left:
                raise ValueError(f"{name} comes with {len(left)} descriptors too many")
            return kind(*values), seq
        except (IndexError, KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise MessageError(f"no message that is due: {error!r}", seq if type(seq) is int else 0) from error


class _Packing(threading.local):
    """A packer per thread: it has one buffer, and several threads of a worker or a client send. A lock would be held
    for ever in a forked copy of the process if another thread packed at the fork."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(use_bin_type=True)


_PACKING = _Packing()


def encode(message: Message, seq: int = 0) -> tuple[bytes, list[int]]:
    """The body that `Kinds.decode` decodes, and the descriptors to be sent with it, which remain the message's."""
    values, fds = message.values, []
    for position in _layout(type(message))[1]:
        if values[position] is not None:
            fds.append(values[position])
            values[position] = True
    return _PACKING.packer.pack([type(message).__name__, seq, *values]), fds


def descriptors(message: Message) -> list[int]:
    """The descriptors that a message carries, in order."""
    values = message.values
    return [values[each] for each in _layout(type(message))[1] if values[each] is not None]


def close_descriptors(message: Message) -> None:
    """Close the descriptors of a received message that is not used."""
    for fd in descriptors(message):
        os.close(fd)


#: By type of message, the result of `_layout`, once a message has been sent or received.
_LAYOUTS: dict[type, tuple[list[tuple[type, ...]], list[int], list[tuple[int, Any]]]] = {}


def _layout(kind: type[Message]) -> tuple[list[tuple[type, ...]], list[int], list[tuple[int, Any]]]:
    """The classes that msgpack may yield for the sequence number and for each field, () for any; which fields are
    descriptors, of which the body only says whether there is one; and which are NamedTuples, which msgpack carries as
    lists."""
    if kind not in _LAYOUTS:
        annotations = list(kind.__annotations__.values())
        fds = [position for position, each in enumerate(annotations) if each == Fd or Fd in get_args(each)]
        parts = [get_args(each) if get_origin(each) is UnionType else (each,) for each in annotations]
        records = [(position, part) for position, each in enumerate(parts) for part in each if hasattr(part, "_fields")]
        _LAYOUTS[kind] = [(int,), *map(_classes, annotations)], fds, records
    return _LAYOUTS[kind]


def _classes(annotation: Any) -> tuple[type, ...]:
    if annotation is Any:
        return ()
    if annotation == Fd:
        return (bool,)
    if annotation is float:
        return (float, int)
    if is_typeddict(annotation):
        return (dict,)
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return (list if hasattr(annotation, "_fields") else annotation,)
    origin = get_origin(annotation)
    if isinstance(origin, type) and origin is not UnionType:
        return (dict if issubclass(origin, Mapping) else list,)
    return tuple(each for part in get_args(annotation) for each in _classes(part))


#: A receiver's handlers, by type of message.
Handlers: TypeAlias = dict[type[Message], Callable[[Any], object]]


def on(kind: type[M], handler: Callable[[M], object]) -> tuple[type[Message], Callable[[Any], object]]:
    """An entry of a receiver's table: the handler of this type."""
    return kind, handler


def table(*entries: tuple[type[Message], Callable[[Any], object]]) -> Handlers:
    """A receiver's table of entries that `on` has made."""
    return dict(entries)
