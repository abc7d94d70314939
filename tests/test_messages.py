"""Every control message: it travels whole, a receiver handles it, and what is malformed is refused with one error."""

import os
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, cast, get_args, get_origin, is_typeddict

import msgpack
import pytest

from shoal.batcher.batcher import Batcher
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.state import ServerState
from shoal.messages import from_batcher, from_worker, shared, to_batcher, to_poller, to_worker
from shoal.messages.from_batcher import BatcherConnected
from shoal.messages.from_client import GuestConnected, QuestionAsked
from shoal.messages.from_worker import WorkerConnected
from shoal.messages.message import Fd, Kinds, Message, MessageError, encode
from shoal.messages.to_batcher import BatcherActivated
from shoal.messages.to_client import TO_CLIENT
from shoal.messages.to_poller import Forget, ModelFound, OrderDone, OrderRefused, Polled
from shoal.messages.to_tracer import TracingChanged
from shoal.messages.to_worker import ConfigFinished, LoadModel, MemoryGranted
from shoal.placement import Machine
from shoal.repository.main import Poller
from shoal.shm import counters, segment
from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import COUNTERS
from shoal.star.models import ModelTable
from shoal.star.place import Place
from shoal.star.shared_port import SharedPort
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.processes.clients import client_handlers
from shoal.supervisor.service import Notifier
from shoal.supervisor.supervisor import Supervisor
from shoal.tracer.main import Tracer
from tests.messages import EVERY_KIND, FD
from tests.supervisor.star_rig import OPTIONS, StarRig
from tests.workers import worker_harness as workers

NONE = cast(Any, None)
TYPES = sorted(EVERY_KIND, key=lambda kind: kind.__name__)


def sample(annotation: Any) -> Any:
    """A value of a field, as msgpack returns it; of a union with None, one of its first type."""
    samples: dict[Any, Any] = {int: 7, str: "x", bool: True, float: 1.5, bytes: b"b", Any: [None, {"a": b"b"}], Fd: FD}
    if annotation in samples:
        return samples[annotation]
    if type(None) in get_args(annotation):
        return sample(get_args(annotation)[0])
    if hasattr(annotation, "_fields"):  # a NamedTuple, which arrives as one
        return annotation(*[sample(each) for each in annotation.__annotations__.values()])
    origin = dict if is_typeddict(annotation) else get_origin(annotation)
    return {"a": [1]} if isinstance(origin, type) and issubclass(origin, Mapping) else ["b"]


def made(kind: type[Message]) -> Message:
    return kind(*[sample(annotation) for annotation in kind.__annotations__.values()])


def decoded(fields: Any, fds: tuple[int, ...] = (), kinds: Kinds[Message] = EVERY_KIND) -> tuple[Message, int]:
    return kinds.decode(msgpack.packb(fields) or b"", fds)


@pytest.mark.parametrize("kind", TYPES)
def test_a_message_travels_whole(kind: type[Message]) -> None:
    message = made(kind)
    assert EVERY_KIND.decode(*encode(message, 3)) == (message, 3)
    without = [None if type(None) in get_args(each) else sample(each) for each in kind.__annotations__.values()]
    assert EVERY_KIND.decode(*encode(kind(*without))) == (kind(*without), 0)
    assert kind.__doc__


@pytest.mark.parametrize("kind", TYPES)
def test_a_malformed_message_is_refused(kind: type[Message]) -> None:
    body, fds = encode(made(kind))
    name, seq, *values = fields = msgpack.unpackb(body)
    wrong = [[name, seq, *values, 1], [name], [name, "1", *values], ["Unknown", seq, *values], [[name], seq], 5, {}]
    if values:
        wrong.append(fields[:-1])
    for position, annotation in enumerate(kind.__annotations__.values(), 2):
        if annotation is not Any:
            wrong.append([*fields[:position], msgpack.Timestamp(1), *fields[position + 1 :]])
    for each in wrong:
        with pytest.raises(MessageError):
            decoded(each, tuple(fds))
    for others in ([*fds, FD], fds[1:]):
        if others != fds:
            with pytest.raises(MessageError):
                decoded(fields, tuple(others))
    with pytest.raises(MessageError):
        decoded(fields, tuple(fds), Kinds(*(each for each in TYPES if each is not kind)))


def test_a_named_tuple_that_lacks_values_is_refused() -> None:
    body, fds = encode(made(BatcherActivated))
    fields = msgpack.unpackb(body)
    assert fields[2 + BatcherActivated.fields.index("redis")].pop() == "x"
    with pytest.raises(MessageError):
        decoded(fields, tuple(fds))


@pytest.mark.parametrize(("fields", "seq"), [(["Unknown", 7], 7), (["Ping", 7, 1], 7), (["Ping", "7"], 0), ([], 0)])
def test_what_is_no_message_may_have_a_sequence_number(fields: list[Any], seq: int) -> None:
    """A receiver that goes on acknowledges it: what it announced is waited for."""
    with pytest.raises(MessageError) as caught:
        decoded(fields)
    assert caught.value.seq == seq


def test_messages_of_two_types_are_never_equal() -> None:
    assert shared.LedgerWanted() == shared.LedgerWanted()
    assert shared.LedgerWanted() != GuestConnected()
    for values, named in (((), {}), ((1, 2), {}), ((1,), {"seq": 1}), ((), {"number": 1})):
        with pytest.raises(TypeError, match="Acknowledged consists of"):
            shared.Acknowledged(*values, **named)


def batcher() -> Batcher:
    bell, table = Doorbell.create(), segment.create(COUNTERS, 1, counters.GEOMETRY, sealed=False)
    settings = BatcherActivated({}, 1, 1, 0, False, 0, None, False, None, 0, 0, 0, os.dup(bell.fd), table)
    bell.close()
    return Batcher(NONE, settings)


def declared(module: ModuleType, *first: type[Message]) -> set[type[Message]]:
    """The messages that a file declares, but for those that come first on a connection."""
    return {each for each in TYPES if each.__module__ == module.__name__} - set(first)


def test_each_receiver_handles_what_it_is_sent_and_nothing_else() -> None:
    supervisor = Supervisor(OPTIONS, {}, {}, Notifier.take({}, os.getpid()), {}, Machine((0,)))
    rig = StarRig()
    port = cast(Any, SimpleNamespace(slab=SimpleNamespace(largest_nbytes=0)))
    place = Place(port, NONE, NONE, ModelTable(), 0.0, 0.0)
    client = place.handlers, SharedPort(place, NONE, NONE).handlers, FrontEnd(ServerState(), place).handlers
    worker = workers.Batcher(1 << 20, 1 << 20, 10.0)
    instance = Instance(1, NONE, NONE, None, cast(Any, SimpleNamespace(loop=rig.loop)), NONE)
    clients = client_handlers(rig.star, supervisor._clients._questions, rig.client_a)
    wishes = {shared.SegmentWanted, shared.PayloadWanted, shared.PayloadMapped, shared.PayloadReleased}
    of_all = {shared.SegmentGone, shared.LedgerWanted, shared.LogChanged}
    of_batcher = declared(to_batcher, BatcherActivated) | of_all | {shared.Ping, shared.PoisonFound}
    of_worker = declared(to_worker, LoadModel, ConfigFinished, MemoryGranted) | of_all | set(shared.PAYLOAD_NEWS)
    of_worker |= {shared.SegmentAnnounced, shared.SegmentMissing, shared.BatcherReplaced}
    tables: list[tuple[Mapping[Any, Callable[[Any], object]], set[Any]]] = [
        (batcher().handlers, of_batcher),
        (workers.loop_of(worker).handlers, of_worker),
        (Poller(NONE, NONE).handlers, {*get_args(to_poller.Order), Forget, shared.LogChanged}),
        (Tracer(NONE, NONE, NONE).handlers, {TracingChanged, shared.LogChanged}),
        (instance.worker.handlers, declared(from_worker, WorkerConnected) | {shared.Refused} | wishes),
        (supervisor.batcher_handlers, declared(from_batcher, BatcherConnected) | {shared.PoisonFound}),
        (supervisor._admin.repository.handlers, {ModelFound, Polled, OrderDone, OrderRefused}),
        (clients, {QuestionAsked} | wishes),
        (supervisor._guests._handlers(rig.client_a), {QuestionAsked} | wishes),
        (client[0] | client[1] | client[2], set(TO_CLIENT)),
    ]
    worker.close()
    rig.close()
    supervisor._control.close()
    supervisor._front_ends.close()
    for handlers, known in tables:
        assert handlers.keys() == known
    assert sum([len(each) for each in client]) == len(set(TO_CLIENT))  # none has two handlers
