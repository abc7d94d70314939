"""The front ends as the supervisor counts them; no arbiter runs."""

import dataclasses
from collections.abc import Iterator

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.http_server import HttpServer, bind
from tests.supervisor.test_star import OPTIONS


class Running:
    """Two lanes and a road, on ports of their own; `said` is what the server was told."""

    def __init__(self) -> None:
        options = dataclasses.replace(OPTIONS, http_port=0, metrics_port=0, http_process_count=2)
        self.said: list[str] = []
        self.server = HttpServer(
            EventLoop(), options, {}, "@nobody", bind(options),
            lambda: self.said.append("started"), lambda: self.said.append("ended"),
        )  # fmt: skip


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.server.close()


def test_it_has_started_when_the_last_front_end_answers(running: Running) -> None:
    for num_started in range(1, 5):  # the fourth takes a dead one's place
        running.server.on_client_started()
        assert running.said == ["started"] * (num_started >= 3)
    running.server.stop()
    assert running.said == ["started", "ended"]


def test_who_begins_to_answer_while_it_stops_is_too_late(running: Running) -> None:
    running.server.on_client_started()
    running.server.on_client_started()
    running.server.stop()
    running.server.on_client_started()
    assert running.said == ["ended"]
