"""The batcher's loop, at a real control connection: the test plays the supervisor, a client and workers."""

from shoal.shm import layout
from shoal.shm.layout import BATCH_ITEM, CLIENT, HAVE, REPLY, REQUEST, P
from tests.batcher.batcher_process import FIRST, FRONT_END, MODEL, SECOND, answer, ask, batching


def test_a_worker_that_makes_way_is_reported_when_it_has_answered() -> None:
    with batching() as supervisor:
        client, first = supervisor.add(CLIENT, FRONT_END, op="client"), supervisor.add_worker(FIRST)
        ask(client, 1)
        item = first.hear()
        supervisor.tell({"op": "worker_retire", "owner": FIRST})
        second = supervisor.add_worker(SECOND)
        ask(client, 2)
        answer(second, second.hear())
        assert client.hear()[P.NUMBER] == 2
        answer(first, item)
        assert supervisor.hear() == {"op": "worker_retired", "owner": FIRST}
        assert client.hear()[:2] == (REPLY, 1)
        supervisor.tell({"op": "worker_gone", "owner": FIRST, "reason": 5, "detail": 0})


def test_a_model_that_makes_way_first_serves_what_stands_in_rings() -> None:
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END, op="client"), supervisor.add_worker(FIRST)
        # Visible, and no bell has rung for it.
        client.writer.push(layout.record(REQUEST, 1, MODEL, layout.pack_ref(FRONT_END, 3, 1), 64 << 32 | 40, 1))
        client.writer.publish()
        supervisor.tell({"op": "model_retire", "model": MODEL})
        item = worker.hear()
        assert item[0] == BATCH_ITEM
        answer(worker, item)
        assert supervisor.hear() == {"op": "model_retired", "model": MODEL}
        supervisor.tell({"op": "model_gone", "model": MODEL})


def test_a_successor_that_is_told_again_reports_after_it_serves() -> None:
    with batching(is_successor=True) as supervisor:
        supervisor.add(CLIENT, FRONT_END, op="client")
        supervisor.add_worker(FIRST)
        for message in ({"op": "worker_retire", "owner": FIRST}, {"op": "model_retire", "model": MODEL}):
            supervisor.tell(message)
        supervisor.tell({"op": "ping"})  # turns the loop once more; nothing may have been said
        supervisor.tell({"op": "resume"})
        assert supervisor.hear() == {"op": "worker_retired", "owner": FIRST}
        assert supervisor.hear() == {"op": "model_retired", "model": MODEL}


def test_a_successor_looks_once_more_at_a_worker_that_has_told_it_all() -> None:
    with batching(is_successor=True) as supervisor:
        supervisor.add(CLIENT, FRONT_END, op="client")
        worker = supervisor.add_worker(FIRST)
        supervisor.tell({"op": "resume"})
        for number in (1, 2):  # from the second time on nothing else is awaited of it
            worker.say(HAVE, 0, 0, 0, layout.pack_ref(FIRST, number, 1))
            supervisor.tell({"op": "worker_told", "owner": FIRST})
            supervisor.channel.send({"op": "ledger"})
            counts = supervisor.hear()["counts"]
            assert (counts["slots_acquired"], counts["slots_released"]) == (number, number)
