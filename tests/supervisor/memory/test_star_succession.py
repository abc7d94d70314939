"""A batcher dies: what its successor, clients and workers hear of one another, and when."""

from shoal.messages.shared import BatcherReplaced, SegmentAnnounced, SegmentGone
from shoal.messages.to_batcher import (
    BatcherActivated,
    BatcherMemoryMade,
    ClientCaughtUp,
    ClientJoined,
    PayloadAnnounced,
    Resume,
    RetireWorker,
    WorkerCaughtUp,
    WorkerDied,
    WorkerJoined,
    WorkerReady,
)
from shoal.messages.to_client import ClientWelcomed
from shoal.reasons import Reason
from tests.messages import FD
from tests.supervisor.star_rig import Sky


def test_a_successor_hears_of_everybody_before_they_speak_to_it_and_waits_for_nobody(sky: Sky) -> None:
    result = sky.make(sky.third, sky.worker_of_3)
    successor = sky.replace_batcher()
    joined, *told = successor.heard()
    assert joined.is_successor is True
    assert told == [
        ClientJoined(owner=sky.client_a.owner, is_late=True, segment=FD, link=FD, bell=FD, clients_bell=FD),
        ClientJoined(owner=sky.client_b.owner, is_late=True, segment=FD, link=FD, bell=FD, clients_bell=FD),
        WorkerJoined(
            owner=sky.worker_of_3.owner, model_id=3, demand=None, segment=FD, link=FD, bell=FD, workers_bell=FD
        ),
        WorkerReady(sky.worker_of_3.owner),
        PayloadAnnounced(owner=result, writer=sky.worker_of_3.owner, is_result=True, segment=FD),
        WorkerJoined(
            owner=sky.worker_of_4.owner, model_id=4, demand=None, segment=FD, link=FD, bell=FD, workers_bell=FD
        ),
        WorkerReady(sky.worker_of_4.owner),
    ]
    assert sky.a.heard() == sky.third.heard() == []
    sky.acknowledge(successor)
    assert sky.a.heard() == sky.b.heard() == sky.third.heard() == [BatcherReplaced()]
    assert successor.heard() == [Resume()]
    for process, message in (
        (sky.b, ClientCaughtUp(sky.client_b.owner)),
        (sky.third, WorkerCaughtUp(sky.worker_of_3.owner)),
        (sky.a, ClientCaughtUp(sky.client_a.owner)),
    ):
        sky.acknowledge(process)
        assert successor.heard() == [message]


def test_a_successor_has_memory_for_an_ensemble_that_came_while_there_was_no_batcher(sky: Sky) -> None:
    sky.star.leave_batcher(sky.batcher.member)
    sky.star.give_batcher_memory()
    sky.star.payloads.ensembles.add(5)
    successor = sky.start()
    sky.star.join_batcher(successor.member)
    assert [type(message) for message in successor.heard()] == [BatcherActivated, BatcherMemoryMade]
    assert sky.a.heard() == [SegmentAnnounced(owner=sky.star.batcher_memory.owner, segment=FD)]


def test_who_joins_while_a_successor_hears_of_everybody_has_said_nothing_before(sky: Sky) -> None:
    successor, late = sky.replace_batcher(), sky.start()
    client = sky.begin_to_join(sky.star.join_client, late)
    sky.settle()
    assert ClientJoined(owner=client.owner, segment=FD, link=FD, bell=FD, clients_bell=FD) in successor.all_heard
    assert BatcherReplaced() not in late.all_heard
    assert ClientCaughtUp(client.owner) not in successor.all_heard


def test_who_joins_as_a_batcher_dies_is_welcome_once_the_successor_has_its_memory(sky: Sky) -> None:
    """What it wrote before would be passed over, and it is not told to send that again."""
    process = sky.start()
    client = sky.begin_to_join(sky.star.join_client, process)
    first = sky.replace_batcher()
    assert process.heard() == []
    sky.batcher = first
    second = sky.replace_batcher()  # the first one dies before it has acknowledged
    assert process.heard() == []
    assert ClientJoined(owner=client.owner, segment=FD, link=FD, bell=FD, clients_bell=FD) in second.heard()
    sky.acknowledge(second)
    assert isinstance(process.heard()[0], ClientWelcomed)
    sky.settle()
    assert BatcherReplaced() not in process.all_heard


def test_a_successor_is_told_of_dead_workers_whose_answers_its_predecessor_had_not_passed_on(sky: Sky) -> None:
    """Else it would have what they had begun executed a second time."""
    result = sky.make(sky.third, sky.worker_of_3)
    third = sky.worker_of_3.owner
    gone = WorkerDied(owner=third, reason=5, detail=77)
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert sky.batcher.heard() == [gone]
    sky.star.leave_batcher(sky.batcher.member)
    assert sky.a.heard() == []
    sky.star.leave_worker(sky.worker_of_4, Reason.INSTANCE_DIED, 0)
    first, second = sky.start(), sky.start()
    for successor in (first, second):  # the first one dies, too, before it has passed anything on
        sky.star.join_batcher(successor.member)
        sky.star.introduce()
        told = successor.heard()[3:]
        assert told[:4] == [
            WorkerJoined(owner=third, model_id=3, demand=None, segment=FD, link=FD, bell=FD, workers_bell=FD),
            WorkerReady(third),
            RetireWorker(third),
            PayloadAnnounced(owner=result, writer=third, is_result=True, segment=FD),
        ]
        assert [type(message) for message in told[4:]] == [WorkerJoined, WorkerReady, RetireWorker]
        sky.acknowledge(successor)
        for process in (sky.a, sky.b):
            assert process.heard() == [BatcherReplaced()]
            sky.acknowledge(process)
        expected = [Resume, WorkerDied, WorkerDied, ClientCaughtUp, ClientCaughtUp]
        assert [type(message) for message in successor.heard()] == expected
        if successor is first:
            sky.star.leave_batcher(successor.member)
            assert sky.a.heard() == []
    sky.acknowledge(second)
    assert SegmentGone(third) in sky.a.heard()


def test_a_worker_that_dies_while_a_place_is_taken_is_reported_to_the_batcher_that_serves(sky: Sky) -> None:
    successor = sky.replace_batcher()
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 0)
    sky.acknowledge(successor)
    assert WorkerDied not in [type(message) for message in successor.all_heard]
    for process in (sky.a, sky.b):
        sky.acknowledge(process)
    assert [type(message) for message in successor.heard()] == [Resume, WorkerDied, ClientCaughtUp, ClientCaughtUp]


def test_a_client_is_late_until_it_has_told_the_batcher_that_serves(sky: Sky) -> None:
    """What it says of a batcher that is dead by then is no word to the next one."""
    for _ in range(2):
        sky.batcher = sky.replace_batcher()
        sky.acknowledge(sky.batcher)
    assert sky.a.heard() == [BatcherReplaced()] * 2
    for seq, is_late in zip(sky.a.unacknowledged, (True, False), strict=True):
        sky.star.acknowledgements.received(sky.a.member, seq)
        sky.clock.settle()
        assert sky.client_a.is_late == is_late


def test_a_successor_that_dies_while_it_hears_is_followed_by_another(sky: Sky) -> None:
    sky.star.leave_batcher(sky.batcher.member)
    first, second = sky.start(), sky.start()
    for successor in (first, second):
        sky.star.join_batcher(successor.member)
        sky.star.introduce()
        if successor is first:
            sky.star.leave_batcher(first.member)
    sky.settle()
    assert sky.a.heard() == []
    assert sky.star.batcher is second.member
    resumed = [type(message) for message in second.all_heard].count(Resume)
    assert resumed == 1
    assert Resume not in [type(message) for message in first.all_heard]
