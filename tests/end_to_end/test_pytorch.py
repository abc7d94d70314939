"""One trained model in every form that PyTorch saves, on one server, driven by Triton's client."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.server import DEADLINE_S, Server, serving
from tests.models.pytorch.digits import Digits

# PyTorch advises against TorchScript whenever it is used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
Array = np.ndarray[Any, np.dtype[Any]]
FILES = Path(__file__).parents[1] / "models" / "pytorch"
IMAGES: Array = np.load(FILES.parents[1] / "data" / "held_out_digits.npz")["images"].astype(np.float32)
MAX_ROWS = 8

#: Name → what is configured beside the tensors; their names.
FORMS = {
    "script": (
        'backend: "pytorch" dynamic_batching { max_queue_delay_microseconds: 60000000 }',
        "INPUT__0",
        "OUTPUT__0",
    ),
    "export": ('platform: "torch_aoti"', "ARGS[0]", "RESULT"),
    "eager": ('backend: "pytorch" runtime: "model.py"', "images", "scores"),
    "corrupt": ('platform: "pytorch_libtorch"', "INPUT__0", "OUTPUT__0"),
    "narrow": ('platform: "pytorch_libtorch"', "INPUT__0", "OUTPUT__0"),
}


def digits() -> Digits:
    module = Digits().eval()
    module.load_state_dict(torch.load(FILES / "digits_weights.pt", weights_only=True))
    return module


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, (fields, source, target) in FORMS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(
            f"""
            {fields} max_batch_size: {MAX_ROWS} instance_group {{ count: 1 kind: KIND_CPU }}
            input {{ name: "{source}" data_type: TYPE_FP32 dims: [ {60 if name == "narrow" else 64} ] }}
            output {{ name: "{target}" data_type: TYPE_FP32 dims: [ 10 ] }}
            """
        )
    save_script(root, digits())
    (root / "corrupt" / "1" / "model.pt").write_bytes((root / "script" / "1" / "model.pt").read_bytes()[:1000])
    shutil.copy(root / "script" / "1" / "model.pt", root / "narrow" / "1")
    shutil.copy(FILES / "digits.pt2", root / "export" / "1" / "model.pt2")
    shutil.copy(FILES / "digits.py", root / "eager" / "1" / "model.py")
    shutil.copy(FILES / "digits_weights.pt", root / "eager" / "1" / "model.pt")
    return root


def save_script(root: Path, module: Digits) -> None:
    script: Any = torch.jit.script(module)
    script.save(root / "script" / "1" / "model.pt")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    served = [f"--load-model={name}" for name in FORMS if name != "corrupt"]
    with serving(repository, "--model-control-mode=explicit", *served) as running:
        yield running
        assert running.stop() == 0, running.log.decode()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(
        server.url, concurrency=MAX_ROWS, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S
    ) as made:
        yield made


def tensor(name: str, images: Array) -> list[triton.InferInput]:
    made = triton.InferInput(FORMS[name][1], list(images.shape), "FP32")
    made.set_data_from_numpy(images)
    return [made]


def scores(client: triton.InferenceServerClient, name: str, images: Array) -> Array:
    found: Array | None = client.infer(name, tensor(name, images)).as_numpy(FORMS[name][2])
    assert found is not None
    return found


def expected(module: Digits, images: Array) -> Array:
    with torch.inference_mode():
        found: Array = module(torch.from_numpy(images)).numpy()
    return found


@pytest.mark.parametrize("name", ["script", "export", "eager"])
def test_answers_are_those_of_pytorch(client: triton.InferenceServerClient, name: str) -> None:
    for start in range(0, 40, MAX_ROWS):  # full batches, which wait for nobody
        images = IMAGES[start : start + MAX_ROWS]
        assert np.allclose(scores(client, name, images), expected(digits(), images), atol=1e-5)


def test_requests_are_executed_as_one_batch(client: triton.InferenceServerClient) -> None:
    pending = [client.async_infer("script", tensor("script", IMAGES[row : row + 1])) for row in range(MAX_ROWS)]
    rows = np.array([each.get_result().as_numpy("OUTPUT__0") for each in pending])
    assert np.allclose(rows[:, 0], expected(digits(), IMAGES[:MAX_ROWS]), atol=1e-5)
    (statistics,) = client.get_inference_statistics("script")["model_stats"]
    assert {each["batch_size"] for each in statistics["batch_stats"]} == {MAX_ROWS}
    assert statistics["inference_count"] > statistics["execution_count"] * 2


def test_a_file_is_replaced_while_it_is_served(client: triton.InferenceServerClient, repository: Path) -> None:
    other = digits()
    with torch.no_grad():
        other.scores.bias.add_(1)
    save_script(repository, other)
    assert np.allclose(scores(client, "script", IMAGES[:8]), expected(digits(), IMAGES[:8]), atol=1e-5)
    client.load_model("script")
    assert np.allclose(scores(client, "script", IMAGES[:8]), expected(other, IMAGES[:8]), atol=1e-5)


def test_a_corrupt_file_is_told_and_nothing_else_changes(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match=r"failed to load model 'corrupt': .* is no PyTorch archive"):
        client.load_model("corrupt")
    assert client.is_model_ready("eager")


def test_wrong_shapes(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'images'"):
        scores(client, "eager", IMAGES[:1, :60])
    # The configuration says 60, the model 64.
    with pytest.raises(InferenceServerException, match=r"(?s)PyTorch execute failure: .*cannot be multiplied \(1x60"):
        scores(client, "narrow", IMAGES[:1, :60])
