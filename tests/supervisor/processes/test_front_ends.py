"""The front ends as the supervisor counts them; no arbiter runs."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.key_file import KeyFile
from shoal.supervisor.processes.front_ends import FrontEnds
from shoal.supervisor.processes.listeners import bind
from shoal.supervisor.processes.zygotes import Zygotes
from tests.supervisor.clock import ClockLoop
from tests.supervisor.star_rig import OPTIONS, PLACE


class Running:
    """Front ends on ports of their own, two lanes for HTTP where there are any."""

    def __init__(self, clock: ClockLoop, **changes: Any) -> None:
        ports: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "http_process_count": 2}
        options = dataclasses.replace(OPTIONS, **ports, **changes)
        self._clock = clock
        self.listeners = bind(
            dataclasses.replace(options, grpc_use_ssl=False, http_use_ssl_mutual=False, metrics_use_ssl=False)
        )  # tries no files
        unused: Any = None
        key_file = KeyFile("", unused, None)
        zygotes = Zygotes(EventLoop(clock), "")
        self.front_ends = FrontEnds(EventLoop(clock), options, {}, "@nobody", self.listeners, key_file, zygotes)

    @property
    def processes(self) -> dict[str, int]:
        """What a role is called → how many processes it has, in the order in which they stop."""
        return {role.name: role.num_processes for role in self.front_ends._roles}

    def variables(self, role: str) -> dict[str, str]:
        """What the processes of a role are told; of descriptors, which of the supervisor's they are."""
        (found,) = [each for each in self.front_ends._roles if each.name == role]
        return {**found.settings, **{name: ",".join(map(str, fds)) for name, fds in found.descriptors.items()}}

    @property
    def environment(self) -> dict[str, str]:
        """What the arbiter is told."""
        assert self.front_ends._arbiter is not None
        return dict(self.front_ends._arbiter._environment)

    def stop(self) -> None:
        self._clock.run(self.front_ends.stop())


@pytest.fixture
def run(clock: ClockLoop) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(**changes: object) -> Running:
        running.append(Running(clock, **changes))
        return running[-1]

    yield start
    for each in running:
        for listener in each.listeners.values():
            listener.close()
        each.front_ends.close()


def test_it_has_started_when_the_last_front_end_answers(run: Callable[..., Running]) -> None:
    running = run()
    started = running.front_ends.open(["m"])
    for num_started in range(1, 6):  # the fifth takes a dead one's place
        running.front_ends.on_client_started()
        assert started.done() == (num_started >= 4)
    running.stop()


def test_it_has_started_at_once_where_no_protocol_is_served(run: Callable[..., Running]) -> None:
    assert run(allow_http=False, allow_grpc=False, allow_metrics=False).front_ends.open([]).done()


def test_who_begins_to_answer_while_it_stops_is_too_late(run: Callable[..., Running]) -> None:
    running = run(allow_grpc=False)
    started = running.front_ends.open(["m"])
    running.front_ends.on_client_started()
    running.front_ends.on_client_started()
    running.stop()
    running.front_ends.on_client_started()
    assert not started.done()


def test_who_joins_while_it_stops_is_told_the_ports_all_the_same(run: Callable[..., Running]) -> None:
    running = run()
    ports = {name: listener.getsockname()[1] for name, listener in running.listeners.items()}
    running.stop()
    assert running.front_ends._settings()["grpc_port"] == ports["grpc"]
    assert running.front_ends.port == ports["http"]


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        ({}, {"http": 2, "grpc": 1, "road": 1}),
        ({"grpc_process_count": 3}, {"http": 2, "grpc": 3, "road": 1}),
        ({"allow_grpc": False}, {"http": 2, "road": 1}),
        ({"allow_http": False}, {"grpc": 1, "road": 1}),
        ({"allow_http": False, "allow_metrics": False}, {"grpc": 1, "road": 1}),
        ({"allow_grpc": False, "allow_http": False}, {"road": 1}),
        ({"allow_grpc": False, "allow_http": False, "allow_metrics": False}, {}),
        ({"grpc_use_ssl": True, "grpc_process_count": 3}, {"http": 2, "grpc": 3, "road": 1}),
    ],
    ids=str,
)
def test_what_runs_for_which_endpoints(
    run: Callable[..., Running], changes: dict[str, Any], processes: dict[str, int]
) -> None:
    running = run(**changes)
    assert list(running.processes.items()) == list(processes.items())
    assert running.front_ends.num_front_ends == sum(processes.values())
    running.stop()


def test_lanes_hand_over_to_the_road_and_only_those_of_http_take_back(run: Callable[..., Running]) -> None:
    running = run()
    http, grpc, road = map(running.variables, ("http", "grpc", "road"))
    assert http["SEND_FD"] == grpc["SEND_FD"]
    assert len({http["SEND_FD"], http["RECEIVE_FD"], road["SEND_FD"], road["RECEIVE_FD"]}) == 4
    assert http["RECEIVE_FD"] == road["RETURNED_FD"]
    assert "RECEIVE_FD" not in grpc
    fds = {name: str(listener.fileno()) for name, listener in running.listeners.items()}
    assert [each["LISTENER_FDS"] for each in (http, grpc, road)] == [fds["http"], fds["grpc"], fds["metrics"]]
    assert road["ACCEPTS"] == "1"


def test_the_arbiter_is_told_all_under_the_names_of_the_roles(run: Callable[..., Running]) -> None:
    running = run()
    assert json.loads(running.environment["SHOAL_FRONT_ENDS"]) == {"http": 2, "grpc": 1, "road": 1}
    assert running.environment["SHOAL_ROAD_ACCEPTS"] == "1"
    assert running.front_ends._arbiter is not None
    descriptors = running.front_ends._arbiter._descriptors
    assert descriptors["SHOAL_GRPC_LISTENER_FDS"] == [running.listeners["grpc"].fileno()]
    assert "SHOAL_HTTP_RECEIVE_FD" in descriptors


def test_a_road_without_endpoints_accepts_nothing(run: Callable[..., Running]) -> None:
    running = run(allow_http=False, allow_metrics=False)
    road = running.variables("road")
    assert (road["ACCEPTS"], road["LISTENER_FDS"]) == ("0", str(running.listeners["grpc"].fileno()))


def test_no_address_leads_to_the_road_s_endpoint_for_grpc(run: Callable[..., Running]) -> None:
    running = run()
    settings = running.front_ends.welcome()(**PLACE).settings
    assert settings is not None
    assert sorted(settings["endpoints"].values()) == ["http", "metrics"]
    assert settings["grpc"]["keepalive_time"] == 7_200_000


def test_a_model_s_process_is_not_sent_the_secrets_of_restricted_apis(run: Callable[..., Running]) -> None:
    front_ends = run(http_restricted_api={"model-repository": ("admin-key", "secret")}).front_ends
    assert "secret" in str(front_ends.welcome()(**PLACE))
    assert "secret" not in str(front_ends.welcome(is_caller=True)(**PLACE))


def test_the_files_of_tls_are_for_the_lanes_of_grpc(run: Callable[..., Running]) -> None:
    running = run(grpc_use_ssl=True, grpc_server_cert="c", grpc_server_key="k")
    assert json.loads(running.environment["SHOAL_GRPC_TLS"]) == ["c", "k", "", False]
    assert "SHOAL_HTTP_TLS" not in running.environment
    assert "SHOAL_GRPC_TLS" not in run().environment


def test_tls_for_http_and_metrics_ends_in_the_lanes_of_http(run: Callable[..., Running]) -> None:
    files = {"http_server_cert": "c", "http_server_key": "k"}
    running = run(http_use_ssl_mutual=True, metrics_use_ssl=True, http_root_cert="r", **files)
    environment = running.environment
    assert json.loads(environment["SHOAL_HTTP_TLS"]) == ["c", "k", "r", True]
    assert json.loads(environment["SHOAL_HTTP_TLS_ENDPOINTS"]) == ["http", "metrics"]
    assert "SHOAL_GRPC_TLS" not in environment
    assert environment["SHOAL_ROAD_ACCEPTS"] == "0"
