"""Who hears of a segment and when."""

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.messages import shared
from shoal.messages.to_batcher import BatcherActivated, BatcherMemoryMade, ModelFailed, PayloadAnnounced, WorkerDied
from shoal.messages.to_client import ModelForgotten
from shoal.reasons import Reason
from shoal.shm import layout, segment
from shoal.shm.layout import Geometry
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.event_loop import Future
from shoal.supervisor.memory.participant import Participant, make_participant
from shoal.supervisor.processes.clients import Clients
from shoal.supervisor.processes.guests import Guests
from shoal.supervisor.processes.members import PATIENCE_S, Member
from shoal.supervisor.questions.questions import Questions
from tests.messages import FD
from tests.supervisor.star_rig import CONFIG, F_GET_SEALS, FUTURE_WRITE_AND_SEAL, PLACEMENT, WELCOME, StarRig


def test_a_request_may_be_named_at_once_and_its_worker_asks_for_it(rig: StarRig) -> None:
    answer = rig.ask(rig.a, rig.client_a)
    owner = answer.owner
    assert answer == shared.PayloadGranted(request=7, owner=owner, may_be_kept=False, segment=FD)
    rig.star.payloads.receive(rig.client_a, shared.PayloadMapped(owner))
    assert fcntl.fcntl(rig.a.fds[-1], F_GET_SEALS) & FUTURE_WRITE_AND_SEAL == FUTURE_WRITE_AND_SEAL
    assert rig.a.heard() == [shared.PayloadReady(owner)]
    assert rig.third.heard() == rig.b.heard() == rig.fourth.heard() == rig.batcher.heard() == []
    rig.star.lend(rig.worker_of_3, owner)
    assert rig.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(rig.third.fds[-1], b"x", 0)


def test_a_front_end_joins_although_every_worker_executes(rig: StarRig) -> None:
    process, joined = rig.start(), list[Participant]()
    client = rig.begin_to_join(rig.star.join_client, process, joined)
    for each in (rig.batcher, process):
        rig.acknowledge(each)
    assert joined == [client]
    assert (
        rig.third.heard() == rig.fourth.heard() == [shared.SegmentAnnounced(owner=client.owner, segment=FD)]
    )  # to spare a question
    assert rig.third.unacknowledged == []
    rig.star.leave_client(client)
    rig.acknowledge(rig.batcher)
    assert rig.third.heard() == rig.fourth.heard() == [shared.SegmentGone(client.owner)]


@pytest.mark.parametrize("kind", ["front end", "caller", "guest"])
def test_who_cannot_be_welcomed_leaves_nothing(
    rig: StarRig, monkeypatch: pytest.MonkeyPatch, num_descriptors: Callable[[], int], kind: str
) -> None:
    """While there is no batcher a client is welcomed at once, and no descriptor may be left for that."""
    guests = Guests(rig.star, Questions(rig.loop, {}), lambda _guest: None)
    nothing: Any = SimpleNamespace(welcome=lambda **_: WELCOME)
    clients = Clients(rig.star, nothing, Questions(rig.loop, {}), nothing, lambda _client: None, lambda _error: True)
    join = {"front end": clients.join_front_end, "caller": clients.join_caller, "guest": guests._join}
    rig.star.leave_batcher(rig.batcher.member)
    process, known, read_only = rig.start(), dict(rig.star.clients), segment.read_only
    opened: list[int] = []

    def scarce(fd: int) -> int:
        if len(opened) == (1 if kind == "guest" else 2):
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(read_only(fd))
        return opened[-1]

    monkeypatch.setattr(segment, "read_only", scarce)
    before = num_descriptors()
    if joining := join[kind](process.member):
        rig.loop.start(joining)
    refused = [message.sentence for message in process.heard() if isinstance(message, shared.Refused)]
    assert [sentence.partition(",")[0] for sentence in refused] == (
        [] if kind == "front end" else ["no file descriptor is left"]
    )
    assert rig.star.clients == known
    process.member.hang_up()
    assert num_descriptors() == before - 1


def test_a_front_end_that_ends_while_it_joins_does_not_end_the_server(
    rig: StarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks: list[Exception] = []
    opened: list[int] = []

    def gives_up(error: Exception) -> bool:
        lacks.append(error)
        return True

    nothing: Any = SimpleNamespace(welcome=lambda **_: WELCOME)
    questions = Questions(rig.loop, {})
    clients = Clients(rig.star, nothing, questions, nothing, lambda _client: None, gives_up)
    rig.star.leave_batcher(rig.batcher.member)
    process, known = rig.start(), dict(rig.star.clients)

    def closed(fd: int) -> int:
        opened.append(fd)
        process.member.hang_up()
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(segment, "read_only", closed)
    rig.loop.start(clients.join_front_end(process.member))
    process.heard()
    assert opened
    assert (lacks, rig.star.clients) == ([], known)


def test_front_ends_without_memory_try_again_each_by_itself_and_soon(
    rig: StarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Counter[Member]()

    def refuse(member: Member) -> tuple[Participant, Future[None]]:
        tries[member] += 1
        raise OutOfSharedMemoryError("no shared memory")

    monkeypatch.setattr(rig.star, "join_client", refuse)
    nothing: Any = SimpleNamespace(welcome=lambda **_: WELCOME)
    clients = Clients(rig.star, nothing, Questions(rig.loop, {}), nothing, lambda _client: None, lambda _error: False)
    members = [rig.start().member for _ in range(4)]
    for member in members:
        rig.loop.start(clients.join_front_end(member))
    for pause_s in (0.0, 0.5, 1.0, 2.0, 2.0):
        rig.clock.pass_time(pause_s)
    assert [tries[member] for member in members] == [6] * 4
    for member in members:
        member.hang_up()
    rig.clock.pass_time(2.0)


def test_a_worker_comes_up_although_it_has_not_read_of_front_ends(rig: StarRig) -> None:
    process = rig.start()
    worker = rig.star.join_worker(process.member, CONFIG)
    announced = rig.star.announce_worker(worker, 3, PLACEMENT, (PLACEMENT.group,))
    for each in (rig.batcher, rig.a):
        rig.acknowledge(each)
    assert not announced.done()
    rig.acknowledge(rig.b)
    assert announced.done()
    assert process.heard()[1:] == [
        shared.SegmentAnnounced(owner=each.owner, segment=FD) for each in (rig.client_a, rig.client_b)
    ]


def test_a_result_may_be_named_after_the_batcher_and_all_front_ends_know_it(rig: StarRig) -> None:
    owner = rig.ask(rig.third, rig.worker_of_3).owner
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadMapped(owner))
    assert rig.a.heard() == rig.b.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    assert rig.batcher.heard() == [
        PayloadAnnounced(owner=owner, writer=rig.worker_of_3.owner, is_result=True, segment=FD)
    ]
    assert rig.fourth.heard() == []
    for process in (rig.a, rig.batcher, rig.b):
        assert rig.third.heard() == []
        rig.acknowledge(process)
    assert rig.third.heard() == [shared.PayloadReady(owner)]


def test_a_front_end_that_joins_later_knows_what_workers_may_have_kept(rig: StarRig) -> None:
    result = rig.make(rig.third, rig.worker_of_3)
    late, _ = rig.join_client()
    assert shared.SegmentAnnounced(owner=result, segment=FD) in late.all_heard
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadReleased(result))
    assert late.heard() == [shared.SegmentGone(result)]


def test_a_writer_is_told_what_it_may_keep(rig: StarRig) -> None:
    rig.star.payloads.receive(rig.client_a, shared.PayloadWanted(request=8, nbytes=4096, model_id=3))
    (answer,) = rig.a.heard()
    assert answer == shared.PayloadGranted(request=8, owner=answer.owner, may_be_kept=True, segment=FD)


def test_room_comes_back_when_all_readers_have_let_go(rig: StarRig) -> None:
    owner = rig.make(rig.a, rig.client_a)
    rig.star.lend(rig.worker_of_3, owner)
    refusal = rig.ask(rig.b, rig.client_b)
    assert (refusal.request, refusal.wire) == (7, 5)
    assert refusal.sentence.endswith("or raise --shm-oversize-mib")
    assert rig.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    rig.star.payloads.receive(rig.client_b, shared.PayloadReleased(owner))  # it is not b's to end
    assert rig.third.heard() == []
    rig.star.payloads.receive(rig.client_a, shared.PayloadReleased(owner))
    rig.star.payloads.receive(rig.client_a, shared.PayloadReleased(owner))
    assert rig.third.heard() == [shared.SegmentGone(owner)]
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadRefused)
    rig.acknowledge(rig.third)
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadGranted)


def test_a_worker_that_makes_room_is_answered_when_the_room_is_there(rig: StarRig) -> None:
    kept = rig.make(rig.third, rig.worker_of_3)
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadReleased(kept))
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadWanted(request=8, nbytes=3 << 20))
    for reader in (rig.batcher, rig.a, rig.b):
        assert rig.third.heard() == []
        rig.acknowledge(reader)
    (answer,) = rig.third.heard()
    assert answer == shared.PayloadGranted(request=8, owner=answer.owner, may_be_kept=False, segment=FD)


def test_a_worker_waits_a_moment_only_for_room_that_it_makes(rig: StarRig) -> None:
    kept = rig.make(rig.third, rig.worker_of_3)
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadReleased(kept))
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadWanted(request=8, nbytes=3 << 20))
    rig.clock.pass_time(PATIENCE_S - 0.1)
    assert rig.third.heard() == []
    rig.clock.pass_time(0.2)
    (answer,) = rig.third.heard()
    assert answer.sentence.endswith("or raise --shm-oversize-mib")


def test_a_worker_that_dies_before_it_has_the_room_gets_none(rig: StarRig) -> None:
    kept = rig.make(rig.third, rig.worker_of_3)
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadReleased(kept))
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadWanted(request=8, nbytes=3 << 20))
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 77)
    rig.settle()
    assert rig.star.payloads.segments.counts == {"oversize_acquired": 1, "oversize_released": 1}


def test_a_dead_front_ends_requests_go_when_the_batcher_has_forgotten_them(rig: StarRig) -> None:
    owner = rig.make(rig.a, rig.client_a)
    rig.star.lend(rig.worker_of_3, owner)
    rig.settle()
    rig.star.leave_client(rig.client_a)
    assert rig.third.heard() == []
    rig.acknowledge(rig.batcher)
    assert shared.SegmentGone(owner) in rig.third.heard()
    rig.acknowledge(rig.third)
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadGranted)


def test_a_dead_workers_results_go_when_the_batcher_has_passed_them_on(rig: StarRig) -> None:
    owner = rig.make(rig.third, rig.worker_of_3)
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert rig.a.heard() == []
    rig.acknowledge(rig.batcher)
    assert shared.SegmentGone(owner) in rig.a.heard()
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadRefused)
    rig.settle()
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadGranted)


def test_batcher_hears_how_a_worker_ended(rig: StarRig) -> None:
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert rig.batcher.heard() == [WorkerDied(rig.worker_of_3.owner, 5, 77, is_repeated=False)]


def test_owner_ids_come_round_and_skip_who_is_there(rig: StarRig) -> None:
    taken = {each.owner for each in (rig.client_a, rig.client_b, rig.worker_of_3, rig.worker_of_4)}
    rig.star.give_batcher_memory()
    taken |= {rig.star.batcher_memory.owner, 1}  # the counters came first
    held = rig.make(rig.a, rig.client_a)
    rig.star.leave_worker(rig.worker_of_4, Reason.INSTANCE_DIED, 0)  # its last answers are still to be passed on
    rig.star.next_owner = (1 << 24) - 2
    owners = [rig.star.take_owner() for _ in range(16)]
    assert owners[0] == (1 << 24) - 2  # the last one is that of mirrored requests
    assert 0 not in owners
    assert (taken | {held}).isdisjoint(owners)
    assert sorted(owners[1:]) == owners[1:]


def is_memfd(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def test_memory_of_the_batchers_own_is_not_in_dev_shm_which_may_be_full_when_it_grows(rig: StarRig) -> None:
    rig.star.give_batcher_memory()
    fd = rig.star.batcher_memory.find(rig.star.batcher_memory.owner)
    assert fd is not None
    assert is_memfd(fd)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_link_is_not_made_of_what_a_slab_was_promised(
    rig: StarRig, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    own, link = Geometry(8, 2 * segment.FIRST_SLAB_NBYTES), Geometry(8, 0)
    later = own.nbytes - segment.first_nbytes(layout.CLIENT, own) - layout.PAGE  # the last page is there, too
    # What /dev/shm has left for the segment, then for the link: of the former's bytes some have no pages yet.
    room = iter([5 + own.nbytes, 5 + later + link.nbytes - missing])
    monkeypatch.setattr(segment, "fits_dev_shm", lambda nbytes: nbytes <= next(room))
    made = make_participant(99, rig.a.member, layout.CLIENT, own, link, sealed=False, promised_nbytes=5)
    assert (is_memfd(made.segment_fd), is_memfd(made.link_fd)) == (False, bool(missing))
    made.close()


def test_memory_of_the_batchers_own_is_made_once_and_anew_for_a_successor(rig: StarRig) -> None:
    rig.star.give_batcher_memory()
    rig.star.give_batcher_memory()
    owner = rig.star.batcher_memory.owner
    assert rig.batcher.heard() == [BatcherMemoryMade(FD)]
    assert rig.a.heard() == rig.b.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    rig.star.lend(rig.worker_of_3, owner)
    assert rig.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    successor = rig.replace_batcher()
    joined, memory, *_ = successor.heard()
    assert (type(joined), memory) == (BatcherActivated, BatcherMemoryMade(FD))
    assert rig.third.heard() == [shared.SegmentGone(owner)]
    assert rig.a.heard() == [shared.SegmentGone(owner)]
    rig.acknowledge(successor)
    assert rig.a.heard() == [
        shared.SegmentAnnounced(owner=rig.star.batcher_memory.owner, segment=FD),
        shared.BatcherReplaced(),
    ]
    assert rig.star.batcher_memory.owner != owner


def test_the_batcher_reads_large_requests_to_ensembles_itself(rig: StarRig) -> None:
    rig.star.payloads.ensembles.add(3)
    owner = int(rig.ask(rig.a, rig.client_a).owner)
    rig.star.payloads.receive(rig.client_a, shared.PayloadMapped(owner))
    assert rig.third.heard() == []
    assert rig.batcher.heard()[-1] == PayloadAnnounced(
        owner=owner, writer=rig.client_a.owner, is_result=False, segment=FD
    )


def test_a_change_is_in_force_once_clients_act_upon_it_and_the_batcher_upon_what_it_was_told(rig: StarRig) -> None:
    rig.star.send_to_batcher(ModelFailed(9))
    changed = rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
    for process in (rig.a, rig.b):
        assert process.heard() == [ModelForgotten("m", "", 1)]
        rig.acknowledge(process)
    assert not changed.done()
    assert rig.batcher.heard() == [ModelFailed(9), shared.Ping()]
    rig.acknowledge(rig.batcher)
    assert changed.done()


def test_a_change_does_not_wait_for_models_that_call_others_for_long(rig: StarRig) -> None:
    process = rig.start()
    rig.begin_to_join(rig.star.join_caller, process)
    rig.settle()
    changed = rig.star.announce_to_clients([ModelForgotten("m", "", 1)])
    for each in (rig.a, rig.b, rig.batcher):
        rig.acknowledge(each)
    assert not changed.done()  # it mostly hears at once, and then asks for nothing that is gone
    rig.clock.pass_time(PATIENCE_S)
    assert changed.done()
    rig.acknowledge(process)
    assert process.all_heard[-1] == ModelForgotten("m", "", 1)
