"""Callers in the star, and segments lent to workers that meet them in a request: who hears of what, and when."""

import fcntl
import os

import pytest

from shoal.messages import shared
from shoal.messages.to_batcher import ClientCaughtUp, Resume
from shoal.messages.to_client import ClientWelcomed
from shoal.reasons import Reason
from shoal.supervisor.memory.loans import ASKING_S
from shoal.supervisor.memory.participant import Participant
from tests.messages import FD
from tests.supervisor.star_rig import CONFIG, F_GET_SEALS, FUTURE_WRITE_AND_SEAL, PLACEMENT, Process, StarRig


def join_caller(rig: StarRig) -> tuple[Process, Participant]:
    process = rig.start()
    caller = rig.begin_to_join(rig.star.join_caller, process)
    rig.settle()
    return process, caller


def test_a_caller_joins_although_every_worker_executes(rig: StarRig) -> None:
    process = rig.start()
    joined: list[Participant] = []
    caller = rig.begin_to_join(rig.star.join_caller, process, joined)
    assert [type(message) for message in rig.third.heard()] == []
    rig.acknowledge(rig.batcher)
    rig.acknowledge(process)
    assert joined == [caller]
    # It asks for the segments of workers, when replies name them.
    rig.acknowledge(process)
    assert [type(message) for message in process.all_heard] == [ClientWelcomed]
    rig.star.lend_to_client(caller, rig.worker_of_3.owner)
    assert process.heard() == [shared.SegmentAnnounced(owner=rig.worker_of_3.owner, segment=FD)]


def test_nothing_waits_for_a_caller(rig: StarRig) -> None:
    """It may hold its interpreter for minutes. What it must be told, it hears when it reads again."""
    process, caller = join_caller(rig)
    rig.star.lend_to_client(caller, rig.worker_of_3.owner)
    heard = len(process.all_heard)
    worker = rig.star.join_worker(rig.start().member, CONFIG)
    announced = rig.star.announce_worker(worker, 3, PLACEMENT, (PLACEMENT.group,))
    result = int(rig.ask(rig.third, rig.worker_of_3).owner)
    rig.star.payloads.receive(rig.worker_of_3, shared.PayloadMapped(result))
    rig.star.leave_worker(rig.worker_of_4, Reason.INSTANCE_DIED, 0)
    for each in (rig.batcher, rig.a, rig.b):
        rig.acknowledge(each)
    assert announced.done()
    assert rig.third.heard() == [shared.PayloadReady(result)]
    assert rig.star.payloads.segments.counts["oversize_acquired"] == 1
    successor = rig.replace_batcher()
    rig.acknowledge(successor)
    assert successor.heard() == [Resume()]
    process.heard()
    assert process.all_heard[heard:] == [
        shared.SegmentAnnounced(owner=rig.worker_of_3.owner, segment=FD),
        shared.SegmentGone(rig.worker_of_4.owner),
        shared.BatcherReplaced(),
    ]
    rig.acknowledge(process)
    assert successor.heard() == [ClientCaughtUp(caller.owner)]


def test_no_other_process_can_write_to_a_callers_memory(rig: StarRig) -> None:
    _, caller = join_caller(rig)
    assert fcntl.fcntl(caller.segment_fd, F_GET_SEALS) & FUTURE_WRITE_AND_SEAL == FUTURE_WRITE_AND_SEAL


def test_a_caller_is_no_front_end(rig: StarRig) -> None:
    _, caller = join_caller(rig)
    assert caller.owner in rig.star.clients
    assert [client.owner for client in rig.star.front_ends] == [rig.client_a.owner, rig.client_b.owner]


def test_a_worker_is_lent_what_it_asks_for_and_told_of_its_end(rig: StarRig) -> None:
    _, caller = join_caller(rig)
    rig.star.lend(rig.worker_of_3, caller.owner)
    assert rig.third.heard() == [shared.SegmentAnnounced(owner=caller.owner, segment=FD)]
    rig.star.leave_client(caller)
    assert rig.third.heard() == []  # not before the batcher has forgotten its requests
    rig.settle()
    assert rig.third.all_heard[-1] == shared.SegmentGone(caller.owner)
    assert shared.SegmentGone(caller.owner) not in rig.fourth.all_heard


def test_a_workers_results_and_a_payload_can_be_lent(rig: StarRig) -> None:
    payload = rig.make(rig.third, rig.worker_of_3)
    rig.star.lend(rig.worker_of_4, rig.worker_of_3.owner)
    rig.star.lend(rig.worker_of_4, payload)
    assert rig.fourth.heard() == [
        shared.SegmentAnnounced(owner=rig.worker_of_3.owner, segment=FD),
        shared.SegmentAnnounced(owner=payload, segment=FD),
    ]
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 0)
    rig.settle()
    assert [message for message in rig.fourth.all_heard if isinstance(message, shared.SegmentGone)] == [
        shared.SegmentGone(rig.worker_of_3.owner),
        shared.SegmentGone(payload),
    ]


def test_what_is_not_there_is_not_lent(rig: StarRig) -> None:
    unmapped = int(rig.ask(rig.third, rig.worker_of_3).owner)
    for owner in (999, unmapped):
        rig.star.lend(rig.worker_of_4, owner)
        assert rig.fourth.heard() == [shared.SegmentMissing(owner)]


def test_a_dead_workers_answers_can_be_read_until_every_caller_has_acknowledged(rig: StarRig) -> None:
    """A caller asks for a worker's segment when it meets an answer there; the worker may be dead by then."""
    process, caller = join_caller(rig)
    dead, result = rig.worker_of_3, rig.make(rig.third, rig.worker_of_3)
    rig.star.leave_worker(dead, Reason.INSTANCE_DIED, 0)
    rig.star.lend_to_client(caller, dead.owner)
    assert process.heard() == [shared.SegmentAnnounced(owner=dead.owner, segment=FD)]
    rig.acknowledge(rig.batcher)  # it has passed them on
    assert shared.SegmentGone(dead.owner) in rig.a.heard()
    assert process.heard() == [shared.SegmentGone(dead.owner)]
    for owner in (dead.owner, result):
        rig.star.lend_to_client(caller, owner)
        assert process.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    rig.acknowledge(process)
    rig.settle()
    for owner in (dead.owner, result):
        rig.star.lend_to_client(caller, owner)
        assert process.heard() == [shared.SegmentMissing(owner)]


def test_a_dead_batchers_memory_can_be_had_until_every_caller_has_acknowledged(rig: StarRig) -> None:
    """The header of an ensemble's answer lies there, and a caller asks for it when it meets the first."""
    process, caller = join_caller(rig)
    rig.star.payloads.ensembles.add(5)
    rig.star.give_batcher_memory()
    rig.settle()
    owner = rig.star.batcher_memory.owner
    process.heard()
    rig.replace_batcher()
    assert shared.SegmentGone(owner) in rig.a.heard()
    assert process.heard() == [shared.SegmentGone(owner)]
    rig.star.next_owner = owner
    assert rig.star.take_owner() != owner
    rig.star.lend_to_client(caller, owner)
    rig.star.lend(rig.worker_of_3, owner)
    assert process.heard() == rig.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    rig.acknowledge(process)
    assert process.heard() == rig.third.heard() == [shared.SegmentGone(owner)]
    rig.star.lend_to_client(caller, owner)
    assert process.heard() == [shared.SegmentMissing(owner)]


def test_a_caller_that_does_not_listen_keeps_a_dead_workers_memory_for_a_while_only(rig: StarRig) -> None:
    process, caller = join_caller(rig)
    dead = rig.worker_of_3
    rig.star.leave_worker(dead, Reason.INSTANCE_DIED, 0)
    rig.acknowledge(rig.batcher)
    rig.clock.pass_time(ASKING_S - 0.1)
    os.fstat(dead.read_only_fd)
    rig.clock.pass_time(0.2)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(dead.read_only_fd)
    process.heard()
    rig.star.lend_to_client(caller, dead.owner)
    assert process.heard() == [shared.SegmentMissing(dead.owner)]


def test_who_borrows_a_dead_workers_memory_while_callers_read_it_is_told_of_its_end(rig: StarRig) -> None:
    """A model passes an answer of a dead worker on to another, whose worker asks for the memory that it lies in."""
    process, _ = join_caller(rig)
    dead, gone = rig.worker_of_3, shared.SegmentGone(rig.worker_of_3.owner)
    rig.star.leave_worker(dead, Reason.INSTANCE_DIED, 0)
    rig.acknowledge(rig.batcher)  # it has passed them on
    rig.star.lend(rig.worker_of_4, dead.owner)
    assert rig.fourth.heard() == [shared.SegmentAnnounced(owner=dead.owner, segment=FD)]
    rig.acknowledge(process)
    assert rig.fourth.heard() == [gone]


def test_a_dead_borrower_is_forgotten(rig: StarRig) -> None:
    _, caller = join_caller(rig)
    rig.star.lend(rig.worker_of_3, caller.owner)
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 0)
    rig.settle()
    rig.star.leave_client(caller)
    rig.settle()
    assert shared.SegmentGone(caller.owner) not in rig.third.all_heard


def test_a_borrowed_payload_takes_room_until_its_borrowers_have_let_go(rig: StarRig) -> None:
    process, caller = join_caller(rig)
    owner = rig.make(process, caller)
    assert shared.SegmentAnnounced(owner=owner, segment=FD) not in rig.third.all_heard  # its readers ask
    rig.star.lend(rig.worker_of_4, owner)
    rig.settle()
    rig.star.payloads.receive(caller, shared.PayloadReleased(owner))
    assert rig.fourth.heard() == [shared.SegmentGone(owner)]
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadRefused)
    assert rig.star.payloads.segments.counts == {"oversize_acquired": 1, "oversize_released": 0}
    rig.acknowledge(rig.fourth)
    assert rig.star.payloads.segments.counts == {"oversize_acquired": 1, "oversize_released": 1}
    assert isinstance(rig.ask(rig.b, rig.client_b), shared.PayloadGranted)


def test_a_dead_borrower_is_not_waited_for(rig: StarRig) -> None:
    process, caller = join_caller(rig)
    owner = rig.make(process, caller)
    rig.star.lend(rig.worker_of_4, owner)
    rig.star.payloads.receive(caller, shared.PayloadReleased(owner))
    rig.star.acknowledgements.gone(rig.fourth.member)
    rig.clock.settle()
    assert rig.star.payloads.segments.counts == {"oversize_acquired": 1, "oversize_released": 1}
