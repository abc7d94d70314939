"""Requests of different lengths in one batch, over every protocol, of a model that knows nothing of it.

The delay is a minute: a batch goes before only because it is full, with four rows of eight elements.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from shoal import Client
from tests.end_to_end.asking import Array, fetch, infer
from tests.end_to_end.command_line import shoal
from tests.end_to_end.figures import metric, statistics
from tests.end_to_end.lifecycle import loaded
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text()
#: The example of docs/scheduling.md, with a batch that is full sooner.
(EXAMPLE,) = re.findall(r"```\n(backend: [^`]*key: \"ragged\"[^`]*)```", PAGE)
PADDED = (
    EXAMPLE.replace('"4096"', '"32"').replace("2000", "60000000")
    + """
output [ { name: "COUNT" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "LENGTH" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
)


def save_model(path: Path) -> None:
    """STATES is twice TOKENS, COUNT what is no padding, LENGTH what TOKENS was padded to."""
    nodes = [
        helper.make_node("Add", ["TOKENS", "TOKENS"], ["STATES"]),
        helper.make_node("ReduceSum", ["MASK", "one"], ["COUNT"]),
        helper.make_node("Shape", ["TOKENS"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Sub", ["COUNT", "COUNT"], ["zeros"]),
        helper.make_node("Add", ["zeros", "length"], ["LENGTH"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in ("TOKENS", "MASK")]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", size])
        for name, size in (("STATES", "t"), ("COUNT", 1), ("LENGTH", 1))
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.array([1]), "one")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def server(explicit: Server, shared: Path) -> Iterator[Server]:
    save_model(add_model(shared, "padded", PADDED) / "model.onnx")
    with loaded(explicit, "padded") as running:
        yield running


def tokens(length: int) -> Array:
    return np.arange(1, 1 + length, dtype=np.int64)[None]


def test_requests_of_four_lengths_are_one_batch_and_each_gets_its_own(server: Server) -> None:
    def ask(length: int) -> dict[str, Array]:
        return infer(
            server, "padded", {"TOKENS": tokens(length)}, tritonclient.grpc if length % 2 else tritonclient.http
        )

    def ask_here() -> dict[str, Array]:
        with Client(server.client_socket) as client:
            return dict(client.infer("padded", {"TOKENS": tokens(6)}))

    with ThreadPoolExecutor(4) as pool:
        here = pool.submit(ask_here)
        answers: dict[int, dict[str, Array]] = dict(
            zip((5, 8, 7), pool.map(ask, (5, 8, 7), timeout=DEADLINE_S), strict=True)
        )
        answers[6] = here.result(DEADLINE_S)
    for length, answer in answers.items():
        assert answer["STATES"].tolist() == (2 * tokens(length)).tolist()
        assert (answer["COUNT"].item(), answer["LENGTH"].item()) == (length, 8)
    (size,) = statistics(server, "padded")["batch_stats"]
    assert (size["batch_size"], size["compute_infer"]["count"]) == (4, 1)


def test_what_was_wasted_is_told(server: Server) -> None:
    wait_until(
        lambda: metric(server, "shoal_batch_elements", model="padded") == 32, lambda: "the padding was not counted"
    )
    assert metric(server, "shoal_batch_padding_elements", model="padded") == 6
    told = fetch(server.http_port, "/v2/repository/models/padded/batches").json["versions"][0]
    assert (told["scheduler"], told["padding_share"]) == ("lengths", 6 / 32)
    _, said, _ = shoal(server, "explain", "padded")
    assert "18.8% of what was executed was padding" in said


def test_one_length_at_a_time(server: Server) -> None:
    """A deterministic request is padded to its bucket, and does not wait for others."""
    answer = infer(server, "padded", {"TOKENS": tokens(3)}, parameters={"deterministic": True})
    assert (answer["STATES"].tolist(), answer["LENGTH"].item()) == ([[2, 4, 6]], 4)


def test_an_input_that_the_server_makes_is_not_the_clients(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="MASK"):
        infer(server, "padded", {"TOKENS": tokens(3), "MASK": tokens(3)})
