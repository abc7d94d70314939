"""How a batch changes answers, and how that is prevented: models whose answers hold the number of rows of their batch.

Four requests at a time: the delay is a minute, so a model that batches executes four rows together, or never.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from shoal import Client
from tests.end_to_end.asking import Array, fetch, infer
from tests.end_to_end.figures import exposition, metric, statistics
from tests.end_to_end.lifecycle import loaded
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, wait_until

FOUR = "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }"
#: The lines of docs/scheduling.md that set the two parameters; every batch is audited here.
DOCS = Path(__file__).parents[2] / "docs"
LINES = re.findall(
    r'parameters \{ key: "(?:deterministic|batch_drift)\w*" .*? \} \}', (DOCS / "scheduling.md").read_text()
)
ALONE, PADDED, ONE_PERCENT = LINES
SHARE = ONE_PERCENT.replace('"0.01"', '"1"')
MODELS = {"batched": SHARE, "lone": ALONE, "even": SHARE + PADDED, "bare": "", "quantised": SHARE}
PROVIDERS = ["CPUExecutionProvider"]
X = np.array([[3, 5]], np.float32)


def save(path: Path, nodes: Sequence[onnx.NodeProto], **constants: Array) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "XY")
    graph = helper.make_graph(
        nodes, "g", [x], [y], [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def save_counting(path: Path) -> None:
    """Y is X times the number of rows of the batch."""
    nodes = [
        helper.make_node("Shape", ["X"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["X", "factor"], ["Y"]),
    ]
    save(path, nodes, zero=np.array(0))


def save_quantised(path: Path) -> None:
    """Y is X times weights, X quantised to 8 bits with one scale for the whole batch, as quantize_dynamic does."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["X"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "W", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["Y"]),
    ]
    save(path, nodes, W=np.array([[7, -3], [11, 5]], np.int8))


@pytest.fixture(scope="module")
def server(explicit: Server, shared: Path) -> Iterator[Server]:
    for name, parameters in MODELS.items():
        save_model = save_quantised if name == "quantised" else save_counting
        config = config_text("onnxruntime", "X FP32 2", "Y FP32 2", FOUR, parameters, rows=8, count=1)
        save_model(add_model(shared, name, config) / "model.onnx")
    with loaded(explicit, *MODELS) as running:
        yield running


def four_at_once(server: Server, model: str, inputs: Sequence[Array] = (X,) * 4) -> list[list[float]]:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda each: infer(server, model, {"X": each}), inputs, timeout=DEADLINE_S))
    return [answer["Y"][0].tolist() for answer in answers]


def sizes(server: Server, model: str) -> dict[int, int]:
    """Executions by their rows."""
    stats = statistics(server, model)["batch_stats"]
    return {row["batch_size"]: row["compute_infer"]["count"] for row in stats}


def drift(server: Server, model: str, name: str) -> float:
    return metric(server, f"shoal_batch_drift_{name}", model=model)


def wait_for_audit(server: Server, model: str) -> None:
    wait_until(lambda: drift(server, model, "audited") == 1, lambda: f"no audit of '{model}'")


def test_a_batch_that_changes_answers_is_seen_and_measured(server: Server) -> None:
    assert four_at_once(server, "batched") == [[12, 20]] * 4
    assert sizes(server, "batched") == {4: 1}
    wait_for_audit(server, "batched")
    assert drift(server, "batched", "changed") == 1
    assert drift(server, "batched", "absolute_sum") == 15  # 20 in a batch, 5 alone
    assert drift(server, "batched", "relative_sum") == 0.75
    assert drift(server, "batched", "unsteady") == drift(server, "batched", "skipped") == 0
    assert sizes(server, "batched") == {4: 1}  # audits are no executions of clients' requests


def test_a_deterministic_models_requests_run_alone(server: Server) -> None:
    assert four_at_once(server, "lone") == [[3, 5]] * 4
    assert sizes(server, "lone") == {1: 4}


def test_padded_batches_all_have_one_size_and_no_drift(server: Server) -> None:
    assert four_at_once(server, "even") == [[24, 40]] * 4
    assert sizes(server, "even") == {4: 1}
    wait_for_audit(server, "even")
    assert drift(server, "even", "changed") == 0


def test_a_real_models_answers_drift_and_those_to_deterministic_requests_do_not(server: Server, shared: Path) -> None:
    inputs = [X * factor for factor in (0.3, 1.7, 40.0, 300.0)]
    in_one_batch = four_at_once(server, "quantised", inputs)
    wait_for_audit(server, "quantised")
    session = onnxruntime.InferenceSession(shared / "quantised" / "1" / "model.onnx", providers=PROVIDERS)
    for each, together in zip(inputs, in_one_batch, strict=True):
        alone = infer(server, "quantised", {"X": each}, parameters={"deterministic": True})["Y"]
        right = np.asarray(session.run(None, {"X": each})[0])
        assert alone.tobytes() == right.tobytes()
        assert each is inputs[-1] or alone[0].tolist() != together
    assert drift(server, "quantised", "audited") == 1


def test_every_metric_of_the_docs_is_printed(server: Server) -> None:
    names = re.findall(r"^\| `(shoal_batch_drift_\w+)` \| (\w+) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    text = exposition(server)
    assert len(names) == 6
    for name, kind in names:
        assert f"# TYPE {name} {kind}" in text


@pytest.mark.parametrize("api", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_a_request_may_ask_for_it_and_does_not_wait(server: Server, api: Any) -> None:
    for number in range(2):  # the second one over HTTP is recognised as one like the first
        answer = infer(server, "bare", {"X": X}, api, parameters={"deterministic": True, "number": number})
        assert answer["Y"].tolist() == [[3, 5]]


def test_a_client_of_this_machine_may_ask_for_it_too(server: Server) -> None:
    with Client(server.client_socket) as client:
        assert client.infer("bare", {"X": X}, parameters={"deterministic": True})["Y"].tolist() == [[3, 5]]


def test_neither_true_nor_false_is_refused(server: Server) -> None:
    sentence = "parameter 'deterministic' is 'maybe', must be true or false"
    with pytest.raises(InferenceServerException, match=sentence):
        infer(server, "bare", {"X": X}, parameters={"deterministic": "maybe"})
    with pytest.raises(InferenceServerException, match=sentence):
        infer(server, "bare", {"X": X}, tritonclient.grpc, parameters={"deterministic": "maybe"})
    body = {"X": [3, 5], "deterministic": "maybe"}
    assert fetch(server.http_port, "/v2/models/bare/generate", body).json["error"] == sentence
