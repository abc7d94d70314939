"""The base of all control messages, and their encoding: msgpack, with file descriptors beside it.

    [name of the type, sequence number, field, field, …]      of a descriptor: whether there is one

A receiver decodes only the types that it handles, and each field must have the type that it is declared with. Anything
else is refused here, with one error, be it an untrusted client's or a process of the server's own. A message whose
sequence number is not 0 is acknowledged once what it says is in force. Pure: no socket, no clock.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, get_args, get_origin

import msgpack

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: object) -> Callable[[type], type]:
        """Stands for that of `typing`, which comes with Python 3.11; type checkers alone look at it."""
        return lambda kind: kind


#: A field that is a file descriptor. The sender keeps its own; the receiver owns the one that it gets.
Fd: TypeAlias = Annotated[int, "file descriptor"]


class MessageError(ValueError):
    """What came over a control connection is no message that its receiver knows."""


@dataclass_transform(frozen_default=True)
class Message:
    """A control message. Its annotations are its fields, in order; values of the class are their defaults.

    Raises TypeError where a field is missing, unknown, or given twice. Neither a NamedTuple nor a dataclass, which take
    ten and sixty times as long to define (50 and 360 µs), in each process that starts; and messages of two types are
    never equal.
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
        """The fields' values, in order."""
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
    """The types of messages that a receiver knows."""

    def __init__(self, *types: type[M]) -> None:
        self.types = {each.__name__: each for each in types}

    def __iter__(self) -> Iterator[type[M]]:
        return iter(self.types.values())

    def decode(self, body: bytes | memoryview, fds: Sequence[int]) -> tuple[M, int]:
        """A message and its sequence number; its descriptors are the receiver's. Raises MessageError."""
        try:
            name, seq, *values = msgpack.unpackb(body, raw=False)
            kind = self.types[name]
            if len(values) != len(kind.fields):
                raise ValueError(f"{name} has {len(values)} fields, not {len(kind.fields)}")
            classes, fd_positions = _layout(kind)
            for field, value, accepted in zip(("seq", *kind.fields), (seq, *values), classes, strict=True):
                if accepted and type(value) not in accepted:
                    raise TypeError(f"{field} of {name} is of {type(value)}")
            left = list(fds)
            for position in fd_positions:
                if values[position] is not None:
                    values[position] = left.pop(0)
            if left:
                raise ValueError(f"{name} comes with {len(left)} descriptors too many")
            return kind(*values), seq
        except (IndexError, KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise MessageError(f"no message that is due: {error!r}") from error


class _Packing(threading.local):
    """A packer has one buffer, and several threads of a worker or a client send: each has a packer of its own. A lock
    would be held for ever in the copy of a process that a fork makes while another thread packs."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(use_bin_type=True)


_PACKING = _Packing()


def encode(message: Message, seq: int = 0) -> tuple[bytes, list[int]]:
    """What `Kinds.decode` decodes: a body, and the descriptors to go with it, which stay the message's."""
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
    """Close what a received message carries: it is of no use to its receiver."""
    for fd in descriptors(message):
        os.close(fd)


#: By type of message, once it has been sent or received: see `_layout`.
_LAYOUTS: dict[type, tuple[list[tuple[type, ...]], list[int]]] = {}


def _layout(kind: type[Message]) -> tuple[list[tuple[type, ...]], list[int]]:
    """The classes that msgpack's values may have, () for any, of the sequence number and each field; and the positions
    of the fields that are descriptors. In a descriptor's place stands only whether there is one."""
    if kind not in _LAYOUTS:
        annotations = list(kind.__annotations__.values())
        fds = [position for position, each in enumerate(annotations) if each == Fd or Fd in get_args(each)]
        _LAYOUTS[kind] = [(int,), *map(_classes, annotations)], fds
    return _LAYOUTS[kind]


def _classes(annotation: Any) -> tuple[type, ...]:
    if annotation is Any:
        return ()
    if annotation == Fd:
        return (bool,)
    if annotation is float:
        return (float, int)
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return (annotation,)
    origin = get_origin(annotation)
    if isinstance(origin, type) and origin is not UnionType:
        return (dict if issubclass(origin, Mapping) else list,)
    return tuple(each for part in get_args(annotation) for each in _classes(part))


#: What a receiver does with messages, by their type.
Handlers: TypeAlias = dict[type[Message], Callable[[Any], None]]


def on(kind: type[M], handler: Callable[[M], None]) -> tuple[type[Message], Callable[[Any], None]]:
    """An entry of a receiver's table: messages of this type go to this method."""
    return kind, handler


def table(*entries: tuple[type[Message], Callable[[Any], None]]) -> Handlers:
    """A receiver's table, of what `on` has made."""
    return dict(entries)
