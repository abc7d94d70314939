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
from tests.supervisor.star_rig import CONFIG, F_GET_SEALS, FUTURE_WRITE_AND_SEAL, PLACEMENT, Process, Sky


def join_caller(sky: Sky) -> tuple[Process, Participant]:
    process = sky.start()
    caller = sky.begin_to_join(sky.star.join_caller, process)
    sky.settle()
    return process, caller


def test_a_caller_joins_although_every_worker_executes(sky: Sky) -> None:
    process = sky.start()
    joined: list[Participant] = []
    caller = sky.begin_to_join(sky.star.join_caller, process, joined)
    assert [type(message) for message in sky.third.heard()] == []
    sky.acknowledge(sky.batcher)
    sky.acknowledge(process)
    assert joined == [caller]
    # It asks for the segments of workers, when replies name them.
    sky.acknowledge(process)
    assert [type(message) for message in process.all_heard] == [ClientWelcomed]
    sky.star.lend_to_client(caller, sky.worker_of_3.owner)
    assert process.heard() == [shared.SegmentAnnounced(owner=sky.worker_of_3.owner, segment=FD)]


def test_nothing_waits_for_a_caller(sky: Sky) -> None:
    """It may hold its interpreter for minutes. What it must be told, it hears when it reads again."""
    process, caller = join_caller(sky)
    sky.star.lend_to_client(caller, sky.worker_of_3.owner)
    heard = len(process.all_heard)
    worker = sky.star.join_worker(sky.start().member, CONFIG)
    announced = sky.star.announce_worker(worker, 3, PLACEMENT)
    result = int(sky.ask(sky.third, sky.worker_of_3).owner)
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadMapped(result))
    sky.star.leave_worker(sky.worker_of_4, Reason.INSTANCE_DIED, 0)
    for each in (sky.batcher, sky.a, sky.b):
        sky.acknowledge(each)
    assert announced.done()
    assert sky.third.heard() == [shared.PayloadReady(result)]
    assert sky.star.payloads.counts["oversize_acquired"] == 1
    successor = sky.replace_batcher()
    sky.acknowledge(successor)
    assert successor.heard() == [Resume()]
    process.heard()
    assert process.all_heard[heard:] == [
        shared.SegmentAnnounced(owner=sky.worker_of_3.owner, segment=FD),
        shared.SegmentGone(sky.worker_of_4.owner),
        shared.BatcherReplaced(),
    ]
    sky.acknowledge(process)
    assert successor.heard() == [ClientCaughtUp(caller.owner)]


def test_nobody_else_can_write_to_a_callers_memory(sky: Sky) -> None:
    _, caller = join_caller(sky)
    assert fcntl.fcntl(caller.segment_fd, F_GET_SEALS) & FUTURE_WRITE_AND_SEAL == FUTURE_WRITE_AND_SEAL


def test_a_caller_is_no_front_end(sky: Sky) -> None:
    _, caller = join_caller(sky)
    assert caller.owner in sky.star.clients
    assert [client.owner for client in sky.star.front_ends] == [sky.client_a.owner, sky.client_b.owner]


def test_a_worker_is_lent_what_it_asks_for_and_told_of_its_end(sky: Sky) -> None:
    _, caller = join_caller(sky)
    sky.star.lend(sky.worker_of_3, caller.owner)
    assert sky.third.heard() == [shared.SegmentAnnounced(owner=caller.owner, segment=FD)]
    sky.star.leave_client(caller)
    assert sky.third.heard() == []  # not before the batcher has forgotten its requests
    sky.settle()
    assert sky.third.all_heard[-1] == shared.SegmentGone(caller.owner)
    assert shared.SegmentGone(caller.owner) not in sky.fourth.all_heard


def test_a_workers_results_and_a_payload_can_be_lent(sky: Sky) -> None:
    payload = sky.make(sky.third, sky.worker_of_3)
    sky.star.lend(sky.worker_of_4, sky.worker_of_3.owner)
    sky.star.lend(sky.worker_of_4, payload)
    assert sky.fourth.heard() == [
        shared.SegmentAnnounced(owner=sky.worker_of_3.owner, segment=FD),
        shared.SegmentAnnounced(owner=payload, segment=FD),
    ]
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 0)
    sky.settle()
    assert [message for message in sky.fourth.all_heard if isinstance(message, shared.SegmentGone)] == [
        shared.SegmentGone(sky.worker_of_3.owner),
        shared.SegmentGone(payload),
    ]


def test_what_is_not_there_is_not_lent(sky: Sky) -> None:
    unmapped = int(sky.ask(sky.third, sky.worker_of_3).owner)
    for owner in (999, unmapped):
        sky.star.lend(sky.worker_of_4, owner)
        assert sky.fourth.heard() == [shared.SegmentMissing(owner)]


def test_a_dead_workers_answers_can_be_read_until_every_caller_has_acknowledged(sky: Sky) -> None:
    """A caller asks for a worker's segment when it meets an answer there; the worker may be dead by then."""
    process, caller = join_caller(sky)
    dead, result = sky.worker_of_3, sky.make(sky.third, sky.worker_of_3)
    sky.star.leave_worker(dead, Reason.INSTANCE_DIED, 0)
    sky.star.lend_to_client(caller, dead.owner)
    assert process.heard() == [shared.SegmentAnnounced(owner=dead.owner, segment=FD)]
    sky.acknowledge(sky.batcher)  # it has passed them on
    assert shared.SegmentGone(dead.owner) in sky.a.heard()
    assert process.heard() == [shared.SegmentGone(dead.owner)]
    for owner in (dead.owner, result):
        sky.star.lend_to_client(caller, owner)
        assert process.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    sky.acknowledge(process)
    sky.settle()
    for owner in (dead.owner, result):
        sky.star.lend_to_client(caller, owner)
        assert process.heard() == [shared.SegmentMissing(owner)]


def test_a_dead_batchers_memory_can_be_had_until_every_caller_has_acknowledged(sky: Sky) -> None:
    """The header of an ensemble's answer lies there, and a caller asks for it when it meets the first."""
    process, caller = join_caller(sky)
    sky.star.payloads.ensembles.add(5)
    sky.star.give_batcher_memory()
    sky.settle()
    owner = sky.star.batcher_memory.owner
    process.heard()
    sky.replace_batcher()
    assert shared.SegmentGone(owner) in sky.a.heard()
    assert process.heard() == [shared.SegmentGone(owner)]
    sky.star.owner_ids.next = owner
    assert sky.star.take_owner() != owner
    sky.star.lend_to_client(caller, owner)
    sky.star.lend(sky.worker_of_3, owner)
    assert process.heard() == sky.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    sky.acknowledge(process)
    assert process.heard() == sky.third.heard() == [shared.SegmentGone(owner)]
    sky.star.lend_to_client(caller, owner)
    assert process.heard() == [shared.SegmentMissing(owner)]


def test_a_caller_that_does_not_listen_keeps_a_dead_workers_memory_for_a_while_only(sky: Sky) -> None:
    process, caller = join_caller(sky)
    dead = sky.worker_of_3
    sky.star.leave_worker(dead, Reason.INSTANCE_DIED, 0)
    sky.acknowledge(sky.batcher)
    sky.clock.pass_time(ASKING_S - 0.1)
    os.fstat(dead.read_only_fd)
    sky.clock.pass_time(0.2)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(dead.read_only_fd)
    process.heard()
    sky.star.lend_to_client(caller, dead.owner)
    assert process.heard() == [shared.SegmentMissing(dead.owner)]


def test_who_borrows_a_dead_workers_memory_while_callers_read_it_is_told_of_its_end(sky: Sky) -> None:
    """A model passes an answer of a dead worker on to another, whose worker asks for the memory that it lies in."""
    process, _ = join_caller(sky)
    dead, gone = sky.worker_of_3, shared.SegmentGone(sky.worker_of_3.owner)
    sky.star.leave_worker(dead, Reason.INSTANCE_DIED, 0)
    sky.acknowledge(sky.batcher)  # it has passed them on
    sky.star.lend(sky.worker_of_4, dead.owner)
    assert sky.fourth.heard() == [shared.SegmentAnnounced(owner=dead.owner, segment=FD)]
    sky.acknowledge(process)
    assert sky.fourth.heard() == [gone]


def test_a_dead_borrower_is_forgotten(sky: Sky) -> None:
    _, caller = join_caller(sky)
    sky.star.lend(sky.worker_of_3, caller.owner)
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 0)
    sky.settle()
    sky.star.leave_client(caller)
    sky.settle()
    assert shared.SegmentGone(caller.owner) not in sky.third.all_heard


def test_a_borrowed_payload_takes_room_until_its_borrowers_have_let_go(sky: Sky) -> None:
    process, caller = join_caller(sky)
    owner = sky.make(process, caller)
    assert shared.SegmentAnnounced(owner=owner, segment=FD) not in sky.third.all_heard  # its readers ask
    sky.star.lend(sky.worker_of_4, owner)
    sky.settle()
    sky.star.payloads.hear(caller, shared.PayloadReleased(owner))
    assert sky.fourth.heard() == [shared.SegmentGone(owner)]
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadRefused)
    assert sky.star.payloads.counts == {"oversize_acquired": 1, "oversize_released": 0}
    sky.acknowledge(sky.fourth)
    assert sky.star.payloads.counts == {"oversize_acquired": 1, "oversize_released": 1}
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadGranted)


def test_a_dead_borrower_is_not_waited_for(sky: Sky) -> None:
    process, caller = join_caller(sky)
    owner = sky.make(process, caller)
    sky.star.lend(sky.worker_of_4, owner)
    sky.star.payloads.hear(caller, shared.PayloadReleased(owner))
    sky.star.acknowledgements.gone(sky.fourth.member)
    sky.clock.settle()
    assert sky.star.payloads.counts == {"oversize_acquired": 1, "oversize_released": 1}
