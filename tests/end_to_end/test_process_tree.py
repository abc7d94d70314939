"""The processes: how they start, how they stop, and that nothing of them stays behind."""

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal.frontend.grpc.messages import service
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.raw_client import Client, post
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import (
    DEADLINE_S,
    SAMPLES,
    Server,
    await_standby,
    descendants,
    launch,
    serving,
    title,
    wait_for_deaths,
)
from tests.end_to_end.slow_model import ask, identity_model
from tests.named_segments import left_behind, named_segments

#: Processes that end some seconds after the start.
EARLY = {"shoal repository poller", "shoal zygote base", ""}
READY_TITLES = {
    "shoal batcher",
    "shoal http",
    "shoal road",
    "shoal worker digits_0_0",
    "shoal worker mlp_0_0",
    "shoal worker simple_0_0",
    "shoal worker simple_identity_0_0",
    "shoal worker simple_string_0_0",
    "shoal worker tokenizer_0_0",
    "shoal zygote base",
    "shoal zygote embedding",
    "shoal zygote identity",
    "shoal zygote onnxruntime",
    "shoal zygote python",
}


def test_ps_reads_like_the_process_picture(samples: Server) -> None:
    titles = {title(pid).partition(" (")[0] for pid in samples.children}
    assert titles >= READY_TITLES - EARLY


def test_the_architecture_draws_every_kind_of_process(samples: Server) -> None:
    _, tree, *_ = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text().split("```")
    titles = {title(pid) for pid in await_standby(samples)}
    kinds = {each if each.startswith("gunicorn") else " ".join(each.split()[:2]) for each in titles}
    assert kinds >= {"shoal batcher", "shoal road", "shoal worker", "shoal zygote"}
    assert {each for each in kinds if each not in tree} == set()


def test_grpc_alone_has_the_front_ends_it_needs(tmp_path: Path) -> None:
    front_ends = ["gunicorn: master [shoal front ends]", "shoal grpc", "shoal grpc", "shoal road"]
    flags = ["--allow-http=false", "--allow-metrics=false", "--grpc-process-count=2"]
    with launch(identity_model(tmp_path), *flags) as server:
        port = server.port_of("GRPCInferenceService")
        socket.create_connection(("127.0.0.1", port), DEADLINE_S).close()
        titles = sorted(title(pid) for pid in descendants(server.process.pid))
        kinds = ("shoal grpc", "shoal http", "shoal road", "gunicorn: master")
        assert [each for each in titles if each.startswith(kinds)] == front_ends
        assert server.stop() == 0


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose only model never finishes loading: it reads a pipe that nobody writes."""
    repository = tmp_path_factory.mktemp("models")
    gate = Gate(repository / "gate")
    config = 'backend: "python" input { name: "A" data_type: TYPE_FP32 dims: [ 1 ] } '
    config += 'output { name: "B" data_type: TYPE_FP32 dims: [ 1 ] }'
    waits = f"class TritonPythonModel:\n    def initialize(self, args):\n        open({str(gate.path)!r}).close()\n"
    add_model(repository, "stuck", config, waits)
    with launch(repository) as server:
        server.read_log(b"loading: stuck:1")
        server.read_log(b"is pinned to cores")
        yield server


def test_connections_are_refused_while_models_load(loading: Server) -> None:
    (port,) = re.findall(rb"127\.0\.0\.1:([0-9]+) is bound for http", loading.log)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), DEADLINE_S)


def test_signal_while_models_load_ends_the_server(loading: Server) -> None:
    children = descendants(loading.process.pid)
    assert loading.stop() == 0
    assert wait_for_deaths(children)


def test_port_in_use_is_said_before_any_model_loads(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = launch(SAMPLES, f"--http-port={taken.getsockname()[1]}", f"--pid-file={tmp_path}/pid")
        assert server.wait() == 1
    assert b"Address already in use. Choose another --http-port" in server.log
    assert b"loading:" not in server.log
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_told_to_stop_as_soon_as_it_has_its_pid_file_leaves_none(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    server = launch(SAMPLES, f"--pid-file={pid_file}")
    while not (pid_file.exists() and pid_file.read_text()):
        assert server.process.poll() is None  # looks again at once: a hundredth of a second later it handles signals
    assert server.stop() == 0
    assert not pid_file.exists()


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_answers_what_was_accepted_and_exits_zero(
    tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """A signal to the whole group, as a terminal sends it, is the supervisor's alone."""
    with serving(identity_model(tmp_path), "--allow-grpc=true") as server, ThreadPoolExecutor(6) as pool:
        worker = next(pid for pid in server.children if title(pid).startswith("shoal worker slow_0_0"))
        os.kill(worker, signal.SIGSTOP)
        answers = [pool.submit(ask, server, each) for each in range(6)]
        wait_for_pending(server, "slow", 5)
        send(server.process.pid, number)
        server.read_log(b"received.")
        os.kill(worker, signal.SIGCONT)
        assert [answer.result() for answer in answers] == list(range(6))
        assert server.wait() == 0
        assert f"Signal ({number.value}) received.".encode() in server.log
        assert b"started again" not in server.log
        assert wait_for_deaths(server.children)


def test_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with serving(identity_model(tmp_path, delay_ms=60_000)) as server, ThreadPoolExecutor(2) as pool:
        hanging = [pool.submit(ask, server, each) for each in range(2)]
        wait_for_pending(server, "slow", 1)
        server.process.send_signal(signal.SIGTERM)
        server.read_log(b"received.")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        assert wait_for_deaths(server.children)
        assert all(each.exception() is not None for each in hanging)


def test_what_is_open_when_the_exit_timeout_is_over_is_refused(tmp_path: Path) -> None:
    """Executing and queued requests, on lanes and on the road; and those of which a part has come."""
    repository = identity_model(tmp_path, delay_ms=60_000)
    with serving(repository, "--exit-timeout-secs=1", "--grpc-port=0") as server, ExitStack() as stack:
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,4],"data":[1,2,3,4]}]}'
        whole = [post("slow", body, *[b"TE: trailers"] * (number % 2)) for number in range(4)]
        begun = [sent[:-5] for sent in whole[:2]]
        clients = [stack.enter_context(Client(server)).send(sent) for sent in (*whole, *begun)]
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
        infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        request = service.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(16)])
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 4])
        call = infer.future(request.SerializeToString())
        streamed = stream(iter([request.SerializeToString()]))
        wait_for_pending(server, "slow", 5)
        assert server.stop() == 1
        assert b"Exit timeout expired. Exiting immediately." in server.log
        assert wait_for_deaths(server.children)
        for reply in [client.reply() for client in clients]:
            assert reply.status == 503
            assert "--exit-timeout-secs" in json.loads(reply.body)["error"]
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert "--exit-timeout-secs" in call.details()
        with pytest.raises(grpc.RpcError) as raised:
            list(streamed)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_killed_supervisor_takes_everything_along() -> None:
    before = named_segments()
    with serving(SAMPLES) as server:
        everybody = await_standby(server)
        assert len([pid for pid in everybody if title(pid) not in EARLY]) == 27
        assert left_behind(before) == set()
        server.process.kill()
        assert wait_for_deaths(everybody)
    assert left_behind(before) == set()


def test_all_but_front_ends_are_the_supervisors_own_children_and_leave_signals_to_it(samples: Server) -> None:
    for pid in await_standby(samples):
        if not title(pid).startswith(("shoal batcher", "shoal worker", "shoal zygote")):
            continue
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"PPid:\t{samples.process.pid}\n" in status
        # A worker has handlers that do nothing: programs that a model starts would go on ignoring what it ignored.
        how = "SigCgt" if title(pid).startswith("shoal worker") else "SigIgn"
        signals = int(re.findall(rf"{how}:\t([0-9a-f]+)", status)[0], 16)
        assert all(signals >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM)), title(pid)
        assert "SigBlk:\t0000000000000000\n" in status


def test_no_front_end_has_a_file_that_had_a_name(samples: Server) -> None:
    """gunicorn's files of signs of life do: an arbiter that is killed as it makes one leaves it behind."""
    opened = [
        os.readlink(each)
        for pid in await_standby(samples) if title(pid).startswith(("gunicorn", "shoal http", "shoal road"))
        for each in Path(f"/proc/{pid}/fd").iterdir()
    ]  # fmt: skip
    assert any(each.startswith("/memfd:heartbeat") for each in opened)
    assert not [each for each in opened if "wgunicorn" in each]


def test_a_zygote_has_one_thread_and_a_socket_and_maps_nothing_of_ours(samples: Server) -> None:
    zygotes = [pid for pid in await_standby(samples) if title(pid).startswith("shoal zygote")]
    assert len([pid for pid in zygotes if title(pid) not in EARLY]) == 4
    for pid in zygotes:
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        targets = [target for target in targets if "/libffi.so" not in target]  # newer ones keep their own file open
        assert [target.partition(":")[0] for target in targets].count("socket") == 1
        assert len(targets) == 4
        assert "shoal-" not in Path(f"/proc/{pid}/maps").read_text()


def test_processes_that_see_no_tensor_have_one_thread(samples: Server) -> None:
    """A child's life hangs on the thread that started it (PR_SET_PDEATHSIG)."""
    kinds = ("shoal supervisor", "shoal batcher", "gunicorn: master")
    pids = [pid for pid in (samples.process.pid, *await_standby(samples)) if title(pid).startswith(kinds)]
    assert len(pids) == 4  # with the standby
    for pid in pids:
        assert len(os.listdir(f"/proc/{pid}/task")) == 1, title(pid)
    # numpy's BLAS starts threads, but in a zygote, which gives it one
    assert "numpy" not in Path(f"/proc/{samples.process.pid}/maps").read_text()
