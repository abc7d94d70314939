"""Tensors too large for the slabs: in and out, beside small ones, refused, and nothing of them left behind."""

import http.client
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.payloads import MIB, SMALL_SLABS, ask, pattern, pid_of, pid_with, processes, usage, write_model
from tests.end_to_end.repositories import python_model
from tests.end_to_end.server import (
    DEADLINE_S,
    Server,
    await_rest,
    imbalances,
    samples,
    serving_to_the_end,
    wait_until,
)

#: Writes down that it executes, and stands still while its gate is closed.
SLOW = python_model("""
    def initialize(self, args):
        self.path = args["model_repository"]

    def execute(self, requests):
        open(f"{self.path}/begun", "w").close()
        open(f"{self.path}/gate").close()
        tensors = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in tensors]
""")


@contextmanager
def unchanged(server: Server) -> Iterator[None]:
    """Afterwards every process has as many descriptors open and as much memory mapped as before."""
    await_rest(server)  # the poller's end gives back descriptors, too
    samples(server.metrics_port)  # the road has its threads' poller once it has answered somebody
    server.ledger_once(lambda ledger: not imbalances(ledger))
    before = usage(server)
    assert len(before) >= 6
    yield
    wait_until(lambda: usage(server) == before, lambda: set(before) ^ set(usage(server)))


@pytest.fixture(scope="module")
def roomy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with room for the largest tensor twice, and two instances of its model."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "fast", num_instances=2)
    with serving_to_the_end(repository, *SMALL_SLABS, "--shm-oversize-mib=224") as server:
        yield server


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model that takes its time."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "slow", backend="python")
    (repository / "slow" / "1" / "model.py").write_text(SLOW)
    return repository / "slow"


@pytest.fixture(scope="module")
def gate(slow: Path) -> Iterator[Gate]:
    """The gate of that model: what it begins to execute while the gate is closed it ends afterwards."""
    gate = Gate(slow / "gate")
    with gate.opened():
        yield gate


@pytest.fixture(scope="module")
def tight_server(slow: Path, gate: Gate) -> Iterator[Server]:
    """One with little room, and that model beside a fast one."""
    write_model(slow.parent, "fast")
    with serving_to_the_end(slow.parent, *SMALL_SLABS, "--shm-oversize-mib=48") as server:
        yield server


@pytest.fixture
def roomy(roomy_server: Server) -> Iterator[Server]:
    with unchanged(roomy_server):
        yield roomy_server


@pytest.fixture
def tight(tight_server: Server) -> Iterator[Server]:
    with unchanged(tight_server):
        yield tight_server


@pytest.mark.parametrize("nbytes", [3 * MIB, 40 * MIB + 13, 100 * MIB + 4095])
def test_tensors_beyond_the_slabs_come_back_byte_for_byte(roomy: Server, nbytes: int) -> None:
    tensor = pattern(nbytes, 1)
    assert np.array_equal(ask(roomy, tensor), tensor)


def test_several_at_once_while_small_requests_flow(roomy: Server) -> None:
    large = [pattern(20 * MIB + 1000 * seed, seed) for seed in range(4)]
    small = [pattern(1000 + seed, seed) for seed in range(60)]
    tensors = [*large[:2], *small, *large[2:]]
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda tensor: ask(roomy, tensor), tensors)
        assert all(map(np.array_equal, answers, tensors))


def test_what_finds_no_room_is_refused_while_small_requests_are_answered(tight: Server, gate: Gate) -> None:
    large, more = pattern(20 * MIB, 1), pattern(30 * MIB, 2)
    with ThreadPoolExecutor(1) as pool:
        with gate.closed():
            first = pool.submit(ask, tight, large, "slow")
            pid_with(tight, "shoal worker slow_0_0")
            with pytest.raises(triton.InferenceServerException) as refusal:
                ask(tight, more)
            assert np.array_equal(ask(tight, large[:1000]), large[:1000])
        assert np.array_equal(first.result(), large)
    assert refusal.value.status() == "503"
    assert re.fullmatch(
        r"a payload of 31457\d{3} bytes, its tensors' padding and header included, is too large for a slab, and others "
        r"like it hold 2\d{7} of the 50331648 bytes that they may take together\. Try again, send smaller batches, or "
        r"raise --shm-oversize-mib",
        refusal.value.message(),
    )


def test_requests_that_fill_the_slab_wait_and_none_is_refused(tight: Server, slow: Path, gate: Gate) -> None:
    tensors = [pattern(MIB * 3 // 2, seed) for seed in range(8)]  # the slab has room for four
    (slow / "begun").unlink(missing_ok=True)
    with ThreadPoolExecutor(len(tensors)) as pool:
        with gate.closed():
            answers = [pool.submit(ask, tight, tensors[0], "slow")]
            wait_until((slow / "begun").exists, lambda: processes(tight))
            answers += [pool.submit(ask, tight, tensor, "slow") for tensor in tensors[1:]]
            wait_for_pending(tight, "slow", len(tensors) - 1)
        for tensor, answer in zip(tensors, answers, strict=True):
            assert np.array_equal(answer.result(), tensor)


def test_bodies_that_wait_for_room_are_received_in_turn(tight: Server) -> None:
    tensors = [pattern(MIB * 3 // 2 + seed, seed) for seed in range(24)]  # two at a time, in a slab of 8 MiB
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda tensor: ask(tight, tensor), tensors)
        assert all(map(np.array_equal, answers, tensors))


def test_a_result_that_finds_no_room_is_refused(tight: Server) -> None:
    with pytest.raises(triton.InferenceServerException) as refusal:
        ask(tight, pattern(30 * MIB, 3))  # there is room for it once, not twice
    assert refusal.value.status() == "503"
    assert refusal.value.message().startswith(
        "output 'OUTPUT0' of model 'fast' is 31457280 bytes, the results of one batch do not fit into memory: a payload"
    )
    assert refusal.value.message().endswith("Try again, send smaller batches, or raise --shm-oversize-mib")


def test_what_can_never_fit_is_refused_with_the_flag(tight: Server) -> None:
    with pytest.raises(triton.InferenceServerException) as refusal:
        ask(tight, pattern(48 * MIB - 1000, 3))  # the body is within its limit, the segment is not
    assert refusal.value.status() == "400"
    assert refusal.value.message().endswith(
        "is too large for a slab, and all such payloads together may take 50331648 bytes. "
        "Send smaller batches, or raise --shm-oversize-mib"
    )


def test_a_killed_worker_fails_what_it_ran_and_its_successor_runs_what_waited(
    tight: Server, slow: Path, gate: Gate
) -> None:
    tensors = [pattern(9 * MIB, 1), pattern(8 * MIB, 2), pattern(7 * MIB, 3), pattern(1000, 4)]
    (slow / "begun").unlink(missing_ok=True)
    with ThreadPoolExecutor(4) as pool:
        with gate.closed():
            answers = [pool.submit(ask, tight, tensors[0], "slow")]
            wait_until((slow / "begun").exists, lambda: processes(tight))
            answers += [pool.submit(ask, tight, tensor, "slow") for tensor in tensors[1:]]
            wait_for_pending(tight, "slow", 3)  # the large ones, too: no process has to map them before they are named
            os.kill(pid_of(tight, "shoal worker slow_0_0"), signal.SIGKILL)
        first, *others = answers
        assert "was killed by signal 9 (SIGKILL) while executing them" in str(first.exception())
        for tensor, answer in zip(tensors[1:], others, strict=True):
            assert np.array_equal(answer.result(), tensor)


def test_what_a_killed_worker_answered_is_delivered_to_the_last_byte(tight: Server) -> None:
    tensor = pattern(20 * MIB, 4)
    connection = http.client.HTTPConnection("127.0.0.1", tight.http_port, timeout=DEADLINE_S)
    connection.request("POST", "/v2/models/fast/infer", tensor.tobytes(), {"Inference-Header-Content-Length": "0"})
    response = connection.getresponse()
    assert b'"OUTPUT0"' in response.read(int(response.headers["Inference-Header-Content-Length"]))
    tight.log = b""
    os.kill(pid_of(tight, "shoal worker fast_0_0"), signal.SIGKILL)
    assert tight.read_log(b"instance 'fast_0_0' of model 'fast' is up again")
    assert response.read() == tensor.tobytes()
    connection.close()


def test_a_killed_front_end_leaves_nothing_behind(tight: Server, gate: Gate) -> None:
    tensor = pattern(20 * MIB, 5)
    with ThreadPoolExecutor(1) as pool, gate.closed():
        answer = pool.submit(ask, tight, tensor, "slow")
        pid_with(tight, "shoal worker slow_0_0")
        os.kill(pid_with(tight, "shoal road"), signal.SIGKILL)
        assert answer.exception() is not None
    assert np.array_equal(ask(tight, tensor[: 3 * MIB]), tensor[: 3 * MIB])
