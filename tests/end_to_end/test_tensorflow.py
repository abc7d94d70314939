"""TensorFlow models behind a real server: a trained SavedModel, strings, a frozen graph, batches, reload, failures.

Skipped without TensorFlow; tests/workers/backends/test_tensorflow.py says how to run it.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'shoal[tensorflow]', then pytest -k tensorflow")
import tensorflow as tf

from tests.end_to_end.server import DEADLINE_S, Server, serving

DATA = Path(__file__).parents[1] / "data"
DIGITS = DATA / "saved_model"
#: Waits until its four rows are there, so that four requests are one execution.
PATIENT = (
    'platform: "tensorflow_savedmodel" max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 }'
)
ONE = " instance_group { kind: KIND_CPU count: 1 }"


def add(repository: Path, name: str, config: str) -> Path:
    """A model's version directory; without a configuration where that is empty."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return directory


def save(directory: Path, function: Any, spec: Any) -> None:
    concrete = tf.function(function).get_concrete_function(spec)
    tf.saved_model.save(tf.Module(), str(directory / "model.savedmodel"), {"serving_default": concrete})


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(DIGITS, add(root, "digits", PATIENT + ONE) / "model.savedmodel")
    shutil.copytree(DIGITS, add(root, "found_by_its_file", "") / "model.savedmodel")
    text = tf.TensorSpec([None, 1], tf.string, "TEXT")
    save(add(root, "upper", 'backend: "tensorflow"' + ONE), lambda text: {"UPPER": tf.strings.upper(text)}, text)
    scale(root, 2.0)
    with tf.Graph().as_default() as graph:
        tf.multiply(tf.compat.v1.placeholder(tf.float32, [None, 2], "X"), 3.0, name="Y")
    ends = 'input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }'
    frozen = add(root, "frozen", f'platform: "tensorflow_graphdef" max_batch_size: 8 {ends}' + ONE)
    (frozen / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    for name in ("corrupt", "wrong"):
        shutil.copytree(DIGITS, add(root, name, wrong(name)) / "model.savedmodel")
    (root / "corrupt" / "1" / "model.savedmodel" / "saved_model.pb").write_bytes(b"no model")
    return root


def wrong(name: str) -> str:
    ends = """
        input { name: "pixels" data_type: TYPE_FP32 dims: 63 } output { name: "scores" data_type: TYPE_FP32 dims: 10 }
    """
    return 'platform: "tensorflow_savedmodel" max_batch_size: 4' + (ends if name == "wrong" else "") + ONE


def scale(root: Path, factor: float) -> None:
    """The model `scaled`, new or instead of what it was."""
    shutil.rmtree(root / "scaled", ignore_errors=True)
    directory = add(root, "scaled", 'backend: "tensorflow"' + ONE)
    save(directory, lambda x: {"Y": factor * x}, tf.TensorSpec([None, 2], tf.float32, "X"))


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    loaded = [f"--load-model={name}" for name in ("digits", "found_by_its_file", "upper", "scaled", "frozen")]
    with serving(repository, "--model-control-mode=explicit", *loaded) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.url, concurrency=4, network_timeout=DEADLINE_S) as connected:
        yield connected


def tensor(name: str, array: NDArray[Any]) -> list[triton.InferInput]:
    given = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array)
    return [given]


def ask(client: Any, model: str, output: str, **arrays: NDArray[Any]) -> NDArray[Any]:
    ((name, array),) = arrays.items()
    answer: NDArray[Any] = client.infer(model, tensor(name, array)).as_numpy(output)
    return answer


def test_several_requests_are_one_execution_with_tensorflows_answers(client: Any) -> None:
    images = np.load(DATA / "held_out_digits.npz")["images"][300:304].astype(np.float32)
    asked = [client.async_infer("digits", tensor("pixels", image[None])) for image in images]
    answers = np.concatenate([request.get_result().as_numpy("scores") for request in asked])
    alone = tf.saved_model.load(str(DIGITS)).signatures["serving_default"](pixels=tf.constant(images))["scores"]
    np.testing.assert_allclose(answers, alone.numpy(), rtol=1e-5, atol=1e-6)
    stats = client.get_inference_statistics("digits")["model_stats"][0]["batch_stats"]
    assert {each["batch_size"]: each["compute_infer"]["count"] for each in stats} == {4: 1}


def test_a_model_without_configuration_is_found_by_its_file(client: Any) -> None:
    config = client.get_model_config("found_by_its_file")
    assert (config["platform"], config["backend"]) == ("tensorflow_savedmodel", "tensorflow")
    assert (config["max_batch_size"], config["instance_group"][0]["count"]) == (4, 2)
    images = np.zeros((3, 64), np.float32)
    assert ask(client, "found_by_its_file", "scores", pixels=images).shape == (3, 10)


def test_strings(client: Any) -> None:
    answer = ask(client, "upper", "UPPER", TEXT=np.array([[b"ab\x00c"], [b""]], object))
    assert answer.tolist() == [[b"AB\x00C"], [b""]]


def test_a_frozen_graph(client: Any) -> None:
    assert ask(client, "frozen", "Y", X=np.ones((2, 2), np.float32)).tolist() == [[3, 3], [3, 3]]


def test_a_reload_serves_the_new_model(client: Any, repository: Path) -> None:
    ones = np.ones((1, 2), np.float32)
    assert ask(client, "scaled", "Y", X=ones).tolist() == [[2, 2]]
    scale(repository, 5.0)
    client.load_model("scaled")
    assert ask(client, "scaled", "Y", X=ones).tolist() == [[5, 5]]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("corrupt", "unable to load model 'corrupt': Cannot parse file"),
        ("wrong", "model 'wrong', tensor 'pixels': the model expects 2 dimensions (shape [-1,64])"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(client: Any, model: str, sentence: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(model)
    assert sentence in str(caught.value)


def test_a_request_of_another_shape_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'X'"):
        ask(client, "frozen", "Y", X=np.ones((1, 3), np.float32))
