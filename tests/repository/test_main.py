"""repository/main.py: the poller, whose orders are answered or refused, each for itself."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from shoal.control import GONE, Channel
from shoal.messages.to_poller import LoadStore, OrderDone, OrderRefused, Register
from shoal.repository.main import Poller
from shoal.repository.poll import Repositories
from shoal.repository.torchserve.configuration import Machine
from shoal.repository.torchserve.store import TorchServeStore
from shoal.store_settings import StoreSettings
from tests.messages import receive


def test_an_order_that_fails_unexpectedly_is_refused_and_the_next_is_answered(tmp_path: Path) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    store = TorchServeStore(StoreSettings(tmp_path), tmp_path / "work", Machine(1, ()))
    with Channel(left) as supervisor, Channel(right) as poller, ThreadPoolExecutor(1) as threads:
        running = threads.submit(Poller(poller, Repositories([tmp_path]), store).run)
        supervisor.send(Register(1, {"url": "a.mar", "nonsense": 1}))
        supervisor.send(LoadStore(2))
        first, second = sorted((receive(supervisor)[0] for _ in range(2)), key=lambda answer: answer.order)
        left.shutdown(socket.SHUT_WR)
        with suppress(*GONE):
            running.result()
    assert isinstance(first, OrderRefused)
    assert first.sentence.startswith("an error of the server's own, TypeError: ")
    assert second == OrderDone(2)
