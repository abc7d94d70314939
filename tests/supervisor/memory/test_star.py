"""Who hears of a segment and when."""

import fcntl
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.messages import shared
from shoal.messages.to_batcher import BatcherActivated, BatcherMemoryMade, ModelFailed, PayloadAnnounced, WorkerDied
from shoal.messages.to_client import ModelForgotten
from shoal.reasons import Reason
from shoal.shm import segment
from shoal.supervisor.descriptors import Descriptors, num_open
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.processes.clients import Clients
from shoal.supervisor.processes.guests import Guests
from shoal.supervisor.processes.members import PATIENCE_S
from shoal.supervisor.questions.questions import Questions
from tests.messages import FD
from tests.supervisor.star_rig import CONFIG, F_GET_SEALS, FUTURE_WRITE_AND_SEAL, OPTIONS, PLACEMENT, WELCOME, Sky


def test_a_request_may_be_named_at_once_and_its_worker_asks_for_it(sky: Sky) -> None:
    answer = sky.ask(sky.a, sky.client_a)
    owner = answer.owner
    assert answer == shared.PayloadGranted(request=7, owner=owner, may_be_kept=False, segment=FD)
    sky.star.payloads.hear(sky.client_a, shared.PayloadMapped(owner))
    assert fcntl.fcntl(sky.a.fds[-1], F_GET_SEALS) & FUTURE_WRITE_AND_SEAL == FUTURE_WRITE_AND_SEAL
    assert sky.a.heard() == [shared.PayloadReady(owner)]
    assert sky.third.heard() == sky.b.heard() == sky.fourth.heard() == sky.batcher.heard() == []
    sky.star.lend(sky.worker_of_3, owner)
    assert sky.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(sky.third.fds[-1], b"x", 0)


def test_a_front_end_joins_although_every_worker_executes(sky: Sky) -> None:
    process, joined = sky.start(), list[Participant]()
    client = sky.begin_to_join(sky.star.join_client, process, joined)
    for each in (sky.batcher, process):
        sky.acknowledge(each)
    assert joined == [client]
    assert (
        sky.third.heard() == sky.fourth.heard() == [shared.SegmentAnnounced(owner=client.owner, segment=FD)]
    )  # to spare a question
    assert sky.third.unacknowledged == []
    sky.star.leave_client(client)
    sky.acknowledge(sky.batcher)
    assert sky.third.heard() == sky.fourth.heard() == [shared.SegmentGone(client.owner)]


@pytest.mark.parametrize("kind", ["front end", "caller", "guest"])
def test_who_cannot_be_welcomed_leaves_nothing(
    sky: Sky, monkeypatch: pytest.MonkeyPatch, num_descriptors: Callable[[], int], kind: str
) -> None:
    """While there is no batcher a client is welcomed at once, and no descriptor may be left for that."""
    guests = Guests(
        sky.loop, sky.star, OPTIONS, Questions(sky.loop, {}), lambda _guest: None, Descriptors(num_open, lambda: 999)
    )
    nothing: Any = SimpleNamespace(welcome=lambda: WELCOME)
    clients = Clients(sky.star, nothing, Questions(sky.loop, {}), nothing, lambda _client: None, lambda _error: True)
    join = {"front end": clients.join_front_end, "caller": clients.join_caller, "guest": guests._join}
    sky.star.leave_batcher(sky.batcher.member)
    process, known, read_only = sky.start(), dict(sky.star.clients), segment.read_only
    opened: list[int] = []

    def scarce(fd: int) -> int:
        if len(opened) == (1 if kind == "guest" else 2):
            raise OSError(24, "no descriptor is left")
        opened.append(read_only(fd))
        return opened[-1]

    monkeypatch.setattr(segment, "read_only", scarce)
    before = num_descriptors()
    if joining := join[kind](process.member):
        sky.loop.start(joining)
    refused = [message.sentence for message in process.heard() if isinstance(message, shared.Refused)]
    assert refused == ([] if kind == "front end" else ["[Errno 24] no descriptor is left"])
    assert sky.star.clients == known
    process.member.hang_up()
    assert num_descriptors() == before - 1


def test_a_worker_comes_up_although_it_has_not_read_of_front_ends(sky: Sky) -> None:
    process = sky.start()
    worker = sky.star.join_worker(process.member, CONFIG)
    announced = sky.star.announce_worker(worker, 3, PLACEMENT)
    for each in (sky.batcher, sky.a):
        sky.acknowledge(each)
    assert not announced.done()
    sky.acknowledge(sky.b)
    assert announced.done()
    assert process.heard()[1:] == [
        shared.SegmentAnnounced(owner=each.owner, segment=FD) for each in (sky.client_a, sky.client_b)
    ]


def test_a_result_may_be_named_after_the_batcher_and_all_front_ends_know_it(sky: Sky) -> None:
    owner = sky.ask(sky.third, sky.worker_of_3).owner
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadMapped(owner))
    assert sky.a.heard() == sky.b.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    assert sky.batcher.heard() == [
        PayloadAnnounced(owner=owner, writer=sky.worker_of_3.owner, is_result=True, segment=FD)
    ]
    assert sky.fourth.heard() == []
    for process in (sky.a, sky.batcher, sky.b):
        assert sky.third.heard() == []
        sky.acknowledge(process)
    assert sky.third.heard() == [shared.PayloadReady(owner)]


def test_a_front_end_that_joins_later_knows_what_workers_may_have_kept(sky: Sky) -> None:
    result = sky.make(sky.third, sky.worker_of_3)
    late, _ = sky.join_client()
    assert shared.SegmentAnnounced(owner=result, segment=FD) in late.all_heard
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadReleased(result))
    assert late.heard() == [shared.SegmentGone(result)]


def test_a_writer_is_told_what_it_may_keep(sky: Sky) -> None:
    sky.star.payloads.hear(sky.client_a, shared.PayloadWanted(request=8, nbytes=4096, model_id=3))
    (answer,) = sky.a.heard()
    assert answer == shared.PayloadGranted(request=8, owner=answer.owner, may_be_kept=True, segment=FD)


def test_room_comes_back_when_all_readers_have_let_go(sky: Sky) -> None:
    owner = sky.make(sky.a, sky.client_a)
    sky.star.lend(sky.worker_of_3, owner)
    refusal = sky.ask(sky.b, sky.client_b)
    assert (refusal.request, refusal.wire) == (7, 5)
    assert refusal.sentence.endswith("or raise --shm-oversize-mib")
    assert sky.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    sky.star.payloads.hear(sky.client_b, shared.PayloadReleased(owner))  # it is not b's to end
    assert sky.third.heard() == []
    sky.star.payloads.hear(sky.client_a, shared.PayloadReleased(owner))
    sky.star.payloads.hear(sky.client_a, shared.PayloadReleased(owner))
    assert sky.third.heard() == [shared.SegmentGone(owner)]
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadRefused)
    sky.acknowledge(sky.third)
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadGranted)


def test_a_worker_that_makes_room_is_answered_when_the_room_is_there(sky: Sky) -> None:
    kept = sky.make(sky.third, sky.worker_of_3)
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadReleased(kept))
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadWanted(request=8, nbytes=3 << 20))
    for reader in (sky.batcher, sky.a, sky.b):
        assert sky.third.heard() == []
        sky.acknowledge(reader)
    (answer,) = sky.third.heard()
    assert answer == shared.PayloadGranted(request=8, owner=answer.owner, may_be_kept=False, segment=FD)


def test_a_worker_waits_a_moment_only_for_room_that_it_makes(sky: Sky) -> None:
    kept = sky.make(sky.third, sky.worker_of_3)
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadReleased(kept))
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadWanted(request=8, nbytes=3 << 20))
    sky.clock.pass_time(PATIENCE_S - 0.1)
    assert sky.third.heard() == []
    sky.clock.pass_time(0.2)
    (answer,) = sky.third.heard()
    assert answer.sentence.endswith("or raise --shm-oversize-mib")


def test_a_worker_that_dies_before_it_has_the_room_gets_none(sky: Sky) -> None:
    kept = sky.make(sky.third, sky.worker_of_3)
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadReleased(kept))
    sky.star.payloads.hear(sky.worker_of_3, shared.PayloadWanted(request=8, nbytes=3 << 20))
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    sky.settle()
    assert sky.star.payloads.counts == {"oversize_acquired": 1, "oversize_released": 1}


def test_a_dead_front_ends_requests_go_when_the_batcher_has_forgotten_them(sky: Sky) -> None:
    owner = sky.make(sky.a, sky.client_a)
    sky.star.lend(sky.worker_of_3, owner)
    sky.settle()
    sky.star.leave_client(sky.client_a)
    assert sky.third.heard() == []
    sky.acknowledge(sky.batcher)
    assert shared.SegmentGone(owner) in sky.third.heard()
    sky.acknowledge(sky.third)
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadGranted)


def test_a_dead_workers_results_go_when_the_batcher_has_passed_them_on(sky: Sky) -> None:
    owner = sky.make(sky.third, sky.worker_of_3)
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert sky.a.heard() == []
    sky.acknowledge(sky.batcher)
    assert shared.SegmentGone(owner) in sky.a.heard()
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadRefused)
    sky.settle()
    assert isinstance(sky.ask(sky.b, sky.client_b), shared.PayloadGranted)


def test_batcher_hears_how_a_worker_ended(sky: Sky) -> None:
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert sky.batcher.heard() == [WorkerDied(owner=sky.worker_of_3.owner, reason=5, detail=77)]


def test_owner_ids_come_round_and_skip_who_is_there(sky: Sky) -> None:
    taken = {each.owner for each in (sky.client_a, sky.client_b, sky.worker_of_3, sky.worker_of_4)}
    sky.star.give_batcher_memory()
    taken |= {sky.star.batcher_memory.owner, 1}  # the counters came first
    held = sky.make(sky.a, sky.client_a)
    sky.star.leave_worker(sky.worker_of_4, Reason.INSTANCE_DIED, 0)  # its last answers are still to be passed on
    sky.star.owner_ids.next = (1 << 24) - 1
    owners = [sky.star.take_owner() for _ in range(16)]
    assert owners[0] == (1 << 24) - 1
    assert 0 not in owners
    assert (taken | {held}).isdisjoint(owners)
    assert sorted(owners[1:]) == owners[1:]


def test_memory_of_the_batchers_own_is_made_once_and_anew_for_a_successor(sky: Sky) -> None:
    sky.star.give_batcher_memory()
    sky.star.give_batcher_memory()
    owner = sky.star.batcher_memory.owner
    assert sky.batcher.heard() == [BatcherMemoryMade(FD)]
    assert sky.a.heard() == sky.b.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    sky.star.lend(sky.worker_of_3, owner)
    assert sky.third.heard() == [shared.SegmentAnnounced(owner=owner, segment=FD)]
    successor = sky.replace_batcher()
    joined, memory, *_ = successor.heard()
    assert (type(joined), memory) == (BatcherActivated, BatcherMemoryMade(FD))
    assert sky.third.heard() == [shared.SegmentGone(owner)]
    assert sky.a.heard() == [shared.SegmentGone(owner)]
    sky.acknowledge(successor)
    assert sky.a.heard() == [
        shared.SegmentAnnounced(owner=sky.star.batcher_memory.owner, segment=FD),
        shared.BatcherReplaced(),
    ]
    assert sky.star.batcher_memory.owner != owner


def test_the_batcher_reads_large_requests_to_ensembles_itself(sky: Sky) -> None:
    sky.star.payloads.ensembles.add(3)
    owner = int(sky.ask(sky.a, sky.client_a).owner)
    sky.star.payloads.hear(sky.client_a, shared.PayloadMapped(owner))
    assert sky.third.heard() == []
    assert sky.batcher.heard()[-1] == PayloadAnnounced(
        owner=owner, writer=sky.client_a.owner, is_result=False, segment=FD
    )


def test_a_change_is_in_force_once_clients_act_upon_it_and_the_batcher_upon_what_it_was_told(sky: Sky) -> None:
    sky.star.tell_batcher(ModelFailed(9))
    changed = sky.star.announce_to_clients([ModelForgotten("m", "", 1)])
    for process in (sky.a, sky.b):
        assert process.heard() == [ModelForgotten("m", "", 1)]
        sky.acknowledge(process)
    assert not changed.done()
    assert sky.batcher.heard() == [ModelFailed(9), shared.Ping()]
    sky.acknowledge(sky.batcher)
    assert changed.done()


def test_a_change_does_not_wait_for_models_that_call_others_for_long(sky: Sky) -> None:
    process = sky.start()
    sky.begin_to_join(sky.star.join_caller, process)
    sky.settle()
    changed = sky.star.announce_to_clients([ModelForgotten("m", "", 1)])
    for each in (sky.a, sky.b, sky.batcher):
        sky.acknowledge(each)
    assert not changed.done()  # it mostly hears at once, and then asks for nothing that is gone
    sky.clock.pass_time(PATIENCE_S)
    assert changed.done()
    sky.acknowledge(process)
    assert process.all_heard[-1] == ModelForgotten("m", "", 1)
