"""The poller at a real control connection: its orders are answered or refused, each for itself."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from shoal.cloud_url import CloudUrl
from shoal.control import GONE, Channel
from shoal.messages import to_poller
from shoal.messages.message import Kinds
from shoal.repository import lines
from shoal.repository.cloud import CloudRepository
from shoal.repository.main import Poller
from shoal.repository.poll import Repositories
from shoal.repository.torchserve.configuration import Machine
from shoal.repository.torchserve.store import TorchServeStore
from shoal.store_settings import StoreSettings
from tests.messages import receive
from tests.repository.s3_server import DEADLINE_S, HaltingProxy, S3Server, credential_file

ANSWERS = Kinds(to_poller.ModelFound, to_poller.Polled, to_poller.OrderDone, to_poller.OrderRefused)


def test_an_order_that_fails_unexpectedly_is_refused_and_the_next_is_answered(tmp_path: Path) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    store = TorchServeStore(StoreSettings(tmp_path), tmp_path / "work", Machine(1, ()))
    with Channel(left) as supervisor, Channel(right) as poller, ThreadPoolExecutor(1) as threads:
        running = threads.submit(Poller(poller, Repositories([tmp_path]), store).run)
        supervisor.send(to_poller.Register(1, {"url": "a.mar", "nonsense": 1}))
        supervisor.send(to_poller.LoadStore(2))
        first, second = sorted((receive(supervisor)[0] for _ in range(2)), key=lambda answer: answer.order)
        left.shutdown(socket.SHUT_WR)
        with suppress(*GONE):
            running.result()
    assert isinstance(first, to_poller.OrderRefused)
    assert first.sentence.startswith("an error of the server's own, TypeError: ")
    assert second == to_poller.OrderDone(2)


def test_as_many_downloads_as_there_are_places_keep_no_index_waiting(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b"]
    monkeypatch.setattr(lines, "LINES_AT_ONCE", len(names))
    s3.upload("places", {f"models/{name}/1/file": bytes(1 << 20) for name in names})
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    with ThreadPoolExecutor() as threads, proxy.running() as host, Channel(ours) as supervisor, Channel(its) as end:
        url = CloudUrl.parse(f"s3://{host}/places/models")
        cloud = CloudRepository(url, tmp_path / "cache", credential_file(tmp_path))
        ended = threads.submit(Poller(end, Repositories([cloud])).run)
        for number, name in enumerate(names):
            supervisor.send(to_poller.LookAll(number, name, None, None, None))
        for _ in names:
            assert proxy.halts.acquire(timeout=DEADLINE_S)
        supervisor.send(to_poller.Poll(len(names), [], None))
        polled, _ = supervisor.receive(ANSWERS)
        assert isinstance(polled, to_poller.Polled)
        assert len(polled.identifiers) == len(names)
        proxy.go_on.set()
        ended_orders = set[int]()
        while len(ended_orders) < len(names):
            answer, _ = supervisor.receive(ANSWERS)
            if isinstance(answer, to_poller.OrderDone):
                ended_orders.add(answer.order)
        supervisor.shutdown()
        with pytest.raises(EOFError):
            ended.result(DEADLINE_S)


def test_an_order_for_which_no_thread_starts_is_refused_and_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    with ThreadPoolExecutor() as threads, Channel(ours) as supervisor, Channel(its) as end:
        ended = threads.submit(Poller(end, Repositories([tmp_path])).run)
        with monkeypatch.context() as patched:
            patched.setattr(Thread, "start", start)
            supervisor.send(to_poller.LookAll(1, "m", None, None, None))
            refused, _ = supervisor.receive(ANSWERS)
        assert isinstance(refused, to_poller.OrderRefused)
        assert refused.sentence.startswith(
            "the reader of model repositories has no thread: can't start new thread. Raise "
        )
        supervisor.send(to_poller.LookAll(2, "m", None, None, None))
        assert isinstance(supervisor.receive(ANSWERS)[0], to_poller.OrderDone)
        supervisor.shutdown()
        with pytest.raises(EOFError):
            ended.result(DEADLINE_S)


def test_a_model_is_looked_at_again_in_its_directory_with_the_configuration_of_a_request(tmp_path: Path) -> None:
    """Its fingerprint is another once a file has changed."""
    file = tmp_path / "m/1/model.onnx"
    file.parent.mkdir(parents=True)
    file.touch()
    config = '{"name": "m", "backend": "onnxruntime", "max_batch_size": 3}'
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    with ThreadPoolExecutor() as threads, Channel(ours) as supervisor, Channel(its) as end:
        ended = threads.submit(Poller(end, Repositories([tmp_path])).run)
        found = list[to_poller.ModelFound]()
        for order in (
            to_poller.LookAll(1, "m", config),
            to_poller.LookAt(2, "m", "", str(tmp_path / "m"), config),
            to_poller.LookAt(3, "m", "", str(tmp_path / "m"), config),
        ):
            if order.order == 3:
                os.utime(file, ns=(1, 1))
                os.utime(file.parent, ns=(1, 1))
            supervisor.send(order)
            answer, _ = supervisor.receive(ANSWERS)
            assert isinstance(answer, to_poller.ModelFound)
            found.append(answer)
            assert isinstance(supervisor.receive(ANSWERS)[0], to_poller.OrderDone)
        supervisor.shutdown()
        with pytest.raises(EOFError):
            ended.result(DEADLINE_S)
    assert [each.config["max_batch_size"] for each in found] == [3, 3, 3]
    assert found[0].fingerprint == found[1].fingerprint != found[2].fingerprint
