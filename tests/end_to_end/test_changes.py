"""The short form of scripts/changes: no request fails, whatever becomes of its model; how fast, it does not ask."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.end_to_end.changes import explicit, post, reload, scale, write_model
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, samples, serving_to_the_end
from tests.end_to_end.traffic import MODEL, Outcome, Traffic

#: Models beside `m`, by their parameters: one that scales itself, one whose instances are replaced after some requests.
MODELS = {
    "busy": {"autoscale": "true", "max_instances": "3", "execute_delay_ms": "20"},
    "tired": {"max_requests": "100", "max_requests_jitter": "20"},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = write_model(tmp_path_factory.mktemp("models"))
    for model, parameters in MODELS.items():
        said = [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
        ]
        add_model(repository, model, "\n".join([MODEL, *said]))
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serving_to_the_end(repository, "--model-control-mode=explicit", "--load-model=*") as server:
        yield server


@contextmanager
def flowing(server: Server) -> Iterator[Outcome]:
    """Traffic that has begun to be answered."""
    with Traffic(server, 200) as outcome:
        assert outcome.is_steady.wait(DEADLINE_S), outcome.faults
        yield outcome


def test_a_model_is_reloaded_and_no_client_notices(server: Server, repository: Path) -> None:
    with flowing(server) as outcome:
        reload(server, repository, 10)
    assert not outcome.faults
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_instances_come_and_go_and_no_client_notices(server: Server) -> None:
    with flowing(server) as outcome:
        scale(server, 3)
    assert not outcome.faults
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_a_log_that_is_not_read_stops_nothing(tmp_path: Path) -> None:
    with explicit(write_model(tmp_path)) as server:
        fill(server)
        with flowing(server) as outcome:
            post(server, "models/m/load")
            for count in (3, 1):
                post(server, "models/m/instances", {"count": count, "wait": True})
        assert not outcome.faults
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_S) == 0


def fill(server: Server) -> None:
    """Leave the pipe of its log no room."""
    assert server.process.stdout is not None
    pipe = os.open(f"/proc/self/fd/{server.process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    os.close(pipe)


def test_a_busy_model_gets_more_instances_by_itself(server: Server) -> None:
    # One instance executes fifty batches a second, in which eight can travel together.
    with Traffic(server, 200, "busy") as outcome:
        assert server.read_log(b"model 'busy' version 1 goes from 1 to 2 instances: they are busy for")
        assert server.read_log(b"instance 'busy_0_1' of model 'busy' is up")
        assert not outcome.faults


def test_instances_that_have_served_enough_are_recycled_and_no_client_notices(server: Server) -> None:
    start = 0
    with Traffic(server, 200, "tired") as outcome:
        for _ in range(3):
            for line in (b"of model 'tired' is recycled: it has taken ", b"'tired_0_0' of model 'tired' is up again"):
                assert server.read_log(line, start=start)
                start = server.log.index(line, start) + 1
    assert not outcome.faults
    assert outcome.num_right > 300
    server.ledger_once(lambda ledger: not imbalances(ledger))
    label = 'device="CPU",model="tired",model_instance="tired_0_0",version="1"'
    recycles = samples(server.metrics_port)[f"shoal_instance_recycles_total{{{label}}}"]
    assert recycles >= 3
    assert samples(server.metrics_port)[f"shoal_instance_restarts_total{{{label}}}"] >= recycles


def test_what_was_accepted_before_the_end_is_answered(tmp_path: Path) -> None:
    with explicit(write_model(tmp_path)) as server:
        with flowing(server) as outcome:
            asked_s = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0
        # What was sent later may have met a connection that was just being closed; nothing else is lost, or wrong.
        assert len(outcome.faults) == len(outcome.lost_s)
        assert all(sent_s > asked_s for sent_s in outcome.lost_s)
