"""A worker process, from exec to exit; the test plays its supervisor."""

import gc
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from shoal import log
from shoal.control import Channel, Listener
from shoal.messages.from_worker import MemoryMapped, ModelIOFound, ModelLoaded, WorkerConnected
from shoal.messages.message import Message
from shoal.messages.shared import Acknowledged, Refused, SegmentAnnounced
from shoal.messages.to_worker import ConfigFinished, LoadModel, MemoryGranted, StopWorker
from shoal.workers.backends.identity import IdentityBackend
from shoal.workers.memory import Memory
from shoal.workers.worker import serve
from tests.messages import receive
from tests.workers.worker_harness import Batcher, model_config, tensor_config

ROOT = Path(__file__).parents[2]
#: Generous: a worker's imports take a busy machine seconds.
DEADLINE_S = 60.0
CORE = min(os.sched_getaffinity(0))


def order(config: dict[str, Any], *, final: bool = True, file: str = "") -> LoadModel:
    """The message by which a worker loads the model."""
    return LoadModel(
        name="m",
        version=1,
        version_dir=os.path.dirname(file),
        model_file=file,
        config=config,
        is_config_final=final,
        may_run_again=True,
        instance_name="m_0_0",
        kind="KIND_CPU",
        device_id=0,
        gpu=0,
        gpu_pool_nbytes=0,
        cores=[CORE],
        backend_config={},
        log={"log_verbose": 0},
    )


class Supervised:
    """A worker process and the supervisor's end of its channel."""

    def __init__(self) -> None:
        listener = Listener.create()
        environment = {
            **os.environ,
            "SHOAL_CONTROL": listener.address,
            "SHOAL_INSTANCE": "4",
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-m", "shoal.workers.worker"],
            cwd="/",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert select.select([listener], [], [], DEADLINE_S)[0]
        accepted = listener.accept()
        listener.close()
        assert accepted is not None
        self.channel: Channel
        self.channel, self.pid = accepted
        self.channel.setblocking(True)

    def load(self, config: dict[str, Any], *, final: bool = True, file: str = "") -> None:
        self.channel.send(order(config, final=final, file=file))

    def receive(self) -> Message:
        message: Message = receive(self.channel)[0]
        return message

    def end(self) -> tuple[int, str, str]:
        """(exit status, what it printed, what it complained)."""
        out, complaints = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, complaints


@pytest.fixture
def worker() -> Iterator[Supervised]:
    supervised = Supervised()
    yield supervised
    supervised.channel.close()
    if supervised.process.poll() is None:
        supervised.process.kill()
        supervised.process.communicate()


def identity() -> dict[str, Any]:
    return model_config([tensor_config("INPUT0", "TYPE_FP32", [2])], [tensor_config("OUTPUT0", "TYPE_FP32", [2])])


@pytest.fixture
def relu(tmp_path: Path) -> str:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["INPUT0"], ["OUTPUT0"])],
        "g",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["N", 2])],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_whole_life(worker: Supervised, relu: str, batcher: Batcher) -> None:
    assert worker.receive() == WorkerConnected(4)
    worker.load(model_config([], [], max_batch_size=0, backend="onnxruntime"), final=False, file=relu)
    found = worker.receive()
    assert isinstance(found, ModelIOFound)
    assert found.values == [[["INPUT0", "TYPE_FP32", [-1, 2]]], [["OUTPUT0", "TYPE_FP32", [-1, 2]]], None, True]
    worker.channel.send(ConfigFinished({**identity(), "backend": "onnxruntime"}))
    assert worker.receive() == ModelLoaded(False)
    own, link = batcher.descriptors
    worker.channel.send(
        MemoryGranted(log={}, segment=own, link=link, bell=batcher.worker_bell.fd, batcher_bell=batcher.bell.fd)
    )
    assert worker.receive() == MemoryMapped()
    worker.channel.send(SegmentAnnounced(owner=7, segment=batcher.client_fd), seq=1)
    assert worker.receive() == Acknowledged(1)
    assert os.sched_getaffinity(worker.pid) == {CORE}
    title = Path(f"/proc/{worker.pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert title == f"shoal worker m_0_0 (CPU {CORE})"

    batcher.send(batcher.request([("INPUT0", "FP32", np.array([[-1, 2]], np.float32))]))
    assert select.select([batcher.bell], [], [], DEADLINE_S)[0]
    assert batcher.done()[0].outputs["OUTPUT0"].tolist() == [[0, 2]]

    worker.channel.send(StopWorker())
    status, out, complaints = worker.end()
    assert (status, complaints) == (0, "")
    assert out.count("\n") == 1
    assert f"worker m_0_0 (CPU {CORE}) is pinned to cores {CORE} and runs 1 threads" in out


def test_a_model_that_cannot_be_loaded_is_told_and_the_worker_ends(worker: Supervised) -> None:
    worker.receive()
    worker.load({**identity(), "output": []})
    assert worker.receive() == Refused(
        wire=4, sentence="model configuration must have equal input/output pairs: model 'm' has 1 inputs and 0 outputs"
    )
    assert worker.end()[0] == 0


def test_a_sample_that_fails_is_told_before_the_worker_says_that_it_has_loaded(worker: Supervised) -> None:
    worker.receive()
    samples = [{"name": "s", "batch_size": 9, "count": 1, "inputs": {}}]
    worker.load({**identity(), "model_warmup": samples})
    assert worker.receive() == Refused(
        wire=4, sentence="failed to run warmup sample 's': batch size 9 for 'm_0_0', max allowed is 8; "
    )
    assert worker.end()[0] == 0


def test_an_unexpected_failure_is_internal_and_its_traceback_in_the_log(worker: Supervised) -> None:
    worker.receive()
    worker.load({"backend": "identity"})
    assert worker.receive() == Refused(wire=2, sentence="KeyError: 'name'")
    status, _, complaints = worker.end()
    assert status == 0
    assert "Traceback" in complaints


def test_stop_before_there_is_memory(worker: Supervised) -> None:
    worker.receive()
    worker.load(identity())
    assert worker.receive() == ModelLoaded(False)
    worker.channel.send(StopWorker())
    assert worker.end()[0] == 0


def test_the_supervisors_end_is_the_workers(worker: Supervised) -> None:
    worker.receive()
    worker.channel.close()
    status, _, complaints = worker.end()
    assert (status, complaints) == (1, "")


def test_an_instance_that_has_ended_leaves_no_memory_in_the_process(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instances of a process come and go with the load, as threads."""
    monkeypatch.setattr(log, "configure", lambda **_: None)  # of the test's own process
    before = [each for each in gc.get_objects() if isinstance(each, Memory)]
    first = IdentityBackend()
    thread = threading.Thread(target=serve, args=(batcher.worker_channel, first))
    thread.start()
    own, link = batcher.descriptors
    for message in (
        order(identity()),
        MemoryGranted(log={}, segment=own, link=link, bell=batcher.worker_bell.fd, batcher_bell=batcher.bell.fd),
        StopWorker(),
    ):
        batcher.supervisor.send(message)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Memory) and each not in before] == []
