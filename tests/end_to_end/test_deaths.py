"""Workers that die and workers that hang: what the log says, what their clients are told, and who goes on."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from shoal import fault, interpreter
from tests.end_to_end.asking import infer
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.server import (
    DEADLINE_S,
    SAMPLES,
    Server,
    descendants,
    only,
    samples,
    serving,
    serving_to_the_end,
    title,
    wait_until,
    worker_of,
)
from tests.end_to_end.slow_model import ask, identity_model

UP_AGAIN = b"instance '%s_0_0' of model '%s' is up again"
EXECUTING = 'shoal_instance_executing_seconds{device="CPU",model="slow",model_instance="slow_0_0",version="1"}'


def wait_until_it_sleeps(server: Server) -> None:
    """Return when the instance's worker has begun a batch and waits as long as the model is told to."""
    wait_until(lambda: bool(samples(server.metrics_port).get(EXECUTING)), server.log.decode)
    stat = Path(f"/proc/{worker_of(server)}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", stat.read_text)


def sentence(answer: "Future[int] | Future[float]") -> tuple[str | None, str | None]:
    """The status and the sentence of a refused request."""
    error = answer.exception(DEADLINE_S)
    assert isinstance(error, InferenceServerException)
    return error.status(), error.message()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server each of whose models has a test that kills its worker."""
    repository = tmp_path_factory.mktemp("models")
    identity_model(repository, delay_ms=60_000, may_run_again=False)
    identity_model(repository, "steady", delay_ms=20)
    for name in ("one", "two", "weary"):
        identity_model(repository, name)
    with serving_to_the_end(repository) as server:
        yield server


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose models may execute for a second, and one of them for 300 ms."""
    repository = tmp_path_factory.mktemp("limited")
    identity_model(repository, "long", delay_ms=60_000)
    identity_model(repository)
    config = repository / "slow" / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "execution_timeout_ms" value { string_value: "300" } }\n')
    with serving(repository, "--model-execution-timeout-secs=1") as server:
        yield server


def test_client_and_log_name_model_instance_pid_and_signal(server: Server) -> None:
    with ThreadPoolExecutor(3) as pool:
        asked = {pool.submit(ask, server, 0)}
        dead: list[int] = []
        for number, name in ((signal.SIGKILL, "signal 9 (SIGKILL)"), (signal.SIGSEGV, "signal 11 (SIGSEGV)")):
            wait_until_it_sleeps(server)  # on the request from before
            asked.add(pool.submit(ask, server, 1))
            wait_for_pending(server, "slow", 1)
            dead.append(worker := worker_of(server))
            os.kill(worker, number)
            (executed,), asked = wait(asked, DEADLINE_S, FIRST_COMPLETED)
            assert sentence(executed) == (
                "500",
                "[request id: <id_unknown>] Failed to process the request(s) for model instance 'slow_0_0', message: "
                f"Stub process 'slow_0_0' is not healthy. The worker of model 'slow' (pid {worker}) was killed by "
                f"{name} while executing them. The server's log says more; the instance is being restarted",
            )
            died = f"model 'slow' version 1: instance 'slow_0_0' (pid {worker}) was killed by {name} while it was exec"
            assert server.read_log(died.encode())
            start = server.log.index(died.encode())
            assert server.read_log(UP_AGAIN % (b"slow", b"slow"), start=start)
            peak = rb"uting batch [1-9]; its memory peaked at [1-9][0-9]* MiB, the limit is [1-9][0-9]* MiB"
            assert re.match(peak, server.log[start + len(died) :])
        # The stack of the crash is there as it came and at the death.
        assert server.log.count(b"Fatal Python error: Segmentation fault") == 2
        assert f"the last that worker slow_0_0 (pid {dead[-1]}) wrote to stderr:".encode() in server.log
        # Compiled functions, as those of the identity backend and of a worker's loop, have no frames.
        innermost = b"worker" if interpreter.is_compiled() else b"identity"
        assert re.search(rb'\n      File "[^"]*%s\.py", line [0-9]+ in [a-z_]+\n' % innermost, server.log)
        wait_until_it_sleeps(server)
        os.kill(worker_of(server), signal.SIGKILL)  # ends the last request


def test_killed_worker_is_replaced_and_the_others_answer(server: Server) -> None:
    os.kill(worker := worker_of(server, "one_0_0"), signal.SIGKILL)
    assert server.read_log(b"instance 'one_0_0' (pid %d) was killed by signal 9 (SIGKILL)" % worker)
    assert ask(server, 7, "two") == 7
    assert server.read_log(UP_AGAIN % (b"one", b"one"))
    assert ask(server, 8, "one") == 8


def test_instance_that_dies_again_and_again_is_given_up_and_the_other_model_serves(server: Server) -> None:
    for number in range(5):
        start = len(server.log)
        os.kill(worker_of(server, "weary_0_0"), signal.SIGKILL)
        if number < 4:
            assert server.read_log(UP_AGAIN % (b"weary", b"weary"), start=start)
    assert server.read_log(b"model 'weary' version 1 is unavailable: all its instances are FAILED")
    assert b"is FAILED, it is tried again in 30 s" in server.log
    with ThreadPoolExecutor(1) as pool:
        assert sentence(pool.submit(ask, server, 1, "weary")) == (
            "503",
            "Model 'weary' version 1 is unavailable: all its instances died again and again. The server's log says "
            "how; they are tried again from time to time",
        )
    assert ask(server, 2, "two") == 2


def test_batcher_that_is_killed_or_stopped_costs_no_request(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number, said in ((signal.SIGKILL, b"was killed by signal 9"), (signal.SIGSTOP, b"has not moved for 1 s")):
            batcher = next(pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher")
            answers = [pool.submit(ask, server, each, "steady") for each in range(40)]
            wait((answers[10],), DEADLINE_S)
            os.kill(batcher, number)
            assert server.read_log(f"the batcher (pid {batcher}) ".encode() + said)
            assert [answer.result(DEADLINE_S) for answer in answers] == list(range(40))


def test_without_zygotes_the_server_goes_on(server: Server) -> None:
    for pid in [pid for pid in descendants(server.process.pid) if title(pid).startswith("shoal zygote")]:
        os.kill(pid, signal.SIGKILL)
    assert server.read_log(b"zygote 'identity' (pid ")
    os.kill(worker_of(server, "two_0_0"), signal.SIGKILL)
    assert server.read_log(UP_AGAIN % (b"two", b"two"))
    assert ask(server, 7, "two") == 7


def test_hanging_worker_is_ended_at_its_limit_and_the_next_one_answers(limited: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert ask(limited, 7) == 7
        worker = worker_of(limited)
        os.kill(worker, signal.SIGSTOP)
        answer = pool.submit(ask, limited, 8)
        # It acts on the first signal already, though it is stopped: its client does not wait a second longer.
        said = f"instance 'slow_0_0' (pid {worker}) was killed by signal 6 (SIGABRT) because it was over the execution "
        assert limited.read_log(f"{said}limit of 300 ms".encode())
        assert answer.result(DEADLINE_S) == 8  # it had not begun the request, so the next one does


def test_server_limit_ends_a_long_execution_with_its_stack_in_the_log(limited: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        status, text = sentence(pool.submit(ask, limited, 1, "long"))
        assert (status, "took longer than the limit of 1000 ms" in str(text)) == ("500", True)
        assert limited.read_log(b"signal 6 (SIGABRT) because it was over the execution limit of 1000 ms")
        assert b"Fatal Python error: Aborted" in limited.log


def test_one_poisonous_request_in_a_thousand_fails_alone_and_says_so() -> None:
    """An ONNX model that crashes its process on one input, whoever it is batched with."""

    def score(number: int) -> float:
        features = np.full((1, 512), -1 if number == 500 else number % 7, np.float32)
        output = infer(running, "mlp", {"features": features}, request_id="poison" if number == 500 else "")["scores"]
        return round(float(output[0, 0]), 3)  # a batch of another size may round otherwise

    with serving(SAMPLES, *only("mlp"), environment={fault.VARIABLE: "worker.opened[poison]:segfault"}) as running:
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(score, number) for number in range(1000)]
        status, text = sentence(answers.pop(500))
        assert status == "500"
        assert "Stub process 'mlp_0_0' is not healthy" in str(text)
        assert "was killed by signal 11 (SIGSEGV) while executing them" in str(text)
        assert len({answer.result() for answer in answers}) == 7
        with triton.InferenceServerClient(running.url) as client:
            wait_until(lambda: client.is_model_ready("mlp"))


def test_batchers_that_fail_by_themselves_one_after_the_other_end_the_server(tmp_path: Path) -> None:
    environment = {fault.VARIABLE: "batcher.accepted:exit=70"}
    with serving(identity_model(tmp_path), environment=environment) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, 1)
        assert server.wait() == 1
        assert answer.exception(DEADLINE_S) is not None
        assert server.log.count(b"exited with code 70; another takes its place") == 4
        assert b"one batcher after the other has failed; the server ends" in server.log
