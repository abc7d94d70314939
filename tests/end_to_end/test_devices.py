"""What a GPU does to a server, by its words: a batch without room is split, a lost device replaces its worker.

And where instances run. Without a GPU a Python model says what a framework would.
"""

import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from scripts.gpu_check.finding import FAKES
from tests.end_to_end.asking import infer
from tests.end_to_end.repositories import config_text, python_model
from tests.end_to_end.server import SAMPLES, Server, serving, serving_to_the_end

FORESTS = Path(__file__).parents[1] / "data" / "forests"

CODE = python_model("""
    def initialize(self, args):
        self.where = f"{args['model_instance_kind']} {args['model_instance_device_id']}"

    KEYWORDdef execute(self, requests):
        rows = len(requests)
        values = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        if any((value < 0).any() for value in values):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if rows > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        where = np.array([[f"{self.where} {sorted(os.sched_getaffinity(0))}"]], object)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", value + 100 * rows), pb_utils.Tensor("WHERE", where)])
            for value in values
        ]
""")
CONFIG = config_text("python", "X FP32 1", "Y FP32 1, WHERE STRING 1", rows=8)
#: Of the model whose eight requests are to be one batch: it goes when they are there, however late that is.
TOGETHER = """
dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 30000000 }
parameters { key: "idempotent" value { string_value: "true" } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for name, keyword, kind, more in (
        ("plain", "", "MODEL", ""),
        ("coroutine", "async ", "MODEL", ""),
        ("together", "", "MODEL", TOGETHER),
        ("on_gpu", "", "GPU", ""),
    ):
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(CODE.replace("KEYWORD", keyword))
        (directory.parent / "config.pbtxt").write_text(f"{CONFIG} {more} instance_group {{ kind: KIND_{kind} }}")
    core = max(_cores())
    with serving(repository, "--exit-on-error=false", f"--host-policy=model,cpu-cores={core}-{core}") as running:
        yield running


def _cores() -> set[int]:
    return os.sched_getaffinity(0)


def ask(server: Server, model: str, value: float, output: str = "Y") -> Any:
    return infer(server, model, {"X": np.array([[value]], np.float32)})[output].item()


def test_a_batch_without_room_on_the_gpu_is_answered_in_parts(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda value: ask(server, "together", value), range(8)))
    rows = [divmod(answer, 100) for answer in answers]
    assert [value for _, value in rows] == list(range(8))
    assert {number for number, _ in rows} == {2}
    with triton.InferenceServerClient(server.url) as client:
        (statistics,) = client.get_inference_statistics("together")["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (8, 1)  # one batch, for the batcher
    assert server.read_log(b"the GPU's memory is too small for a batch of 8 rows")
    assert server.read_log(b"the GPU's memory is too small for a batch of 4 rows")


@pytest.mark.parametrize("model", ["plain", "coroutine"])
def test_a_worker_whose_gpu_is_lost_says_so_to_its_client_and_is_replaced(server: Server, model: str) -> None:
    start = len(server.log)
    with pytest.raises(InferenceServerException, match="an illegal memory access was encountered"):
        ask(server, model, -1)
    assert server.read_log(b"exited with code 70, since its GPU answered it no more,", start=start)
    assert server.read_log(f"instance '{model}_0_0' of model '{model}' is up again".encode(), start=start)
    assert ask(server, model, 7) == 107


def test_kind_model_and_its_host_policy(server: Server) -> None:
    assert ask(server, "plain", 1, "WHERE") == f"MODEL 0 [{max(_cores())}]".encode()


# --- backends without GPUs ---


def write_models_for_gpus(repository: Path) -> None:
    """Models as a repository of a machine with GPUs has them, of backends that use none."""
    shutil.copytree(SAMPLES / "embedding_table", repository / "embedding_table")
    shutil.copytree(SAMPLES / "mlp", repository / "network")
    shutil.copytree(SAMPLES / "mlp", repository / "vino")
    (repository / "forest" / "1").mkdir(parents=True)
    shutil.copy(FORESTS / "xgboost.json", repository / "forest" / "1")
    table = (SAMPLES / "embedding_table" / "config.pbtxt").read_text().partition("instance_group")[0]
    texts = {
        "embedding_table": f"{table} instance_group {{ kind: KIND_GPU gpus: [ 0, 1 ] }}",
        "network": 'backend: "onnxruntime" instance_group { kind: KIND_MODEL }',
        "vino": 'backend: "openvino" default_model_filename: "model.onnx" max_batch_size: 4 '
        "instance_group { kind: KIND_GPU count: 2 }",
        "forest": 'backend: "fil" parameters { key: "model_type" value { string_value: "xgboost_json" } } '
        'parameters { key: "is_classifier" value { string_value: "false" } } '
        'instance_group { name: "trees" kind: KIND_GPU gpus: 0 }',
    }
    for name, text in texts.items():
        (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def for_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("for_gpus")
    write_models_for_gpus(repository)
    return repository


def test_a_repository_for_gpus_is_served_on_the_cpu_where_a_backend_has_nothing_else(for_gpus: Path) -> None:
    with serving_to_the_end(for_gpus) as server, triton.InferenceServerClient(server.url) as client:
        for name, count in (("embedding_table", 1), ("network", 1), ("vino", 2), ("forest", 1)):
            assert client.is_model_ready(name)
            (group,) = client.get_model_config(name)["instance_group"]
            assert (group["kind"], group["gpus"], group["count"]) == ("KIND_CPU", [], count)
        rows = triton.InferInput("features", [1, 512], "FP32")
        rows.set_data_from_numpy(np.ones((1, 512), np.float32))
        for name in ("network", "vino"):
            scores = client.infer(name, [rows]).as_numpy("scores")
            assert scores is not None
            assert scores.shape == (1, 10)
        sentence = "instance group 'trees' of model 'forest' has kind KIND_GPU, which backend 'fil' cannot use"
        assert server.log.decode().count(sentence) == 1
        assert b"'network' has kind KIND_MODEL, which backend 'onnxruntime' cannot use" in server.log


def test_who_wants_no_cpu_in_a_gpu_s_place_is_told_what_cannot_be(for_gpus: Path) -> None:
    with serving_to_the_end(for_gpus, "--cpu-fallback=false", "--exit-on-error=false") as server:
        with triton.InferenceServerClient(server.url) as client:
            reasons = {row["name"]: row["reason"] for row in client.get_model_repository_index()}
        assert reasons["forest"] == (
            "Unsupported: instance_group kind KIND_GPU not supported: group 'trees' of model 'forest' runs on the "
            "backend 'fil', which takes KIND_CPU"
        )
        assert reasons["network"].startswith("Unsupported: instance_group kind KIND_MODEL not supported: ")


def test_a_gpu_that_is_not_there_fails_the_model_with_tritons_sentence(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        reasons = {model["name"]: model.get("reason", "") for model in client.get_model_repository_index()}
    sentence = "instance group on_gpu_0 of model on_gpu has kind KIND_GPU but no GPUs are available"
    assert reasons == {"plain": "", "coroutine": "", "together": "", "on_gpu": f"Invalid argument: {sentence}"}


# --- a GPU that only NVIDIA's library, faked, tells of ---


def fake_gpu() -> dict[str, str]:
    """The variables of a server to which the fake library and nvidia-smi tell of a GPU."""
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": os.environ["PATH"]}
    return {name: os.pathsep.join(filter(None, (str(FAKES), path))) for name, path in paths.items()}


def test_a_full_gpu_takes_no_model(tmp_path: Path) -> None:
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "config.pbtxt").write_text(
        config_text("identity", "X FP32 1", "Y FP32 1", "instance_group { kind: KIND_GPU }")
    )
    flags = ["--exit-on-error=false", "--model-load-gpu-limit=0:0.01"]
    with (
        serving_to_the_end(tmp_path, *flags, environment=fake_gpu()) as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        (row,) = client.get_model_repository_index()
    assert row["state"] == "UNAVAILABLE"
    assert re.match(
        r"Unavailable: model 'model' version 1 is not loaded on GPU 0: \d+ of 81920 MiB of its memory are in use, more "
        r"than --model-load-gpu-limit=0:0\.01 allows\.",
        row["reason"],
    )


def test_a_gpu_that_several_models_lose_again_and_again_is_in_quarantine(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(CODE.replace("KEYWORD", ""))
        (tmp_path / name / "config.pbtxt").write_text(f"{CONFIG} instance_group {{ kind: KIND_GPU }}")
    with serving_to_the_end(tmp_path, environment=fake_gpu()) as server:
        for name in ("a", "b", "a"):
            start = len(server.log)
            with pytest.raises(InferenceServerException, match="an illegal memory access was encountered"):
                ask(server, name, -1)
            assert server.read_log(f"instance '{name}_0_0' of model '{name}' is up again".encode(), start=start)
        with pytest.raises(InferenceServerException, match="an illegal memory access was encountered"):
            ask(server, "b", -1)
        assert server.read_log(b"GPU 0 (GPU-fake) is in quarantine for 60 s")
        assert server.read_log(b"it has to wait for GPU 0, which is in quarantine, and is FAILED")
        assert ask(server, "a", 7) == 107  # its worker has come up before
        with pytest.raises(InferenceServerException, match="b"):
            ask(server, "b", 7)
