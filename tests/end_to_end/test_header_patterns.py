"""Patterns of forwarded headers with flags of their own, as RE2 has them: a model tells which headers have come."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.end_to_end.server import Server, serving

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }
"""
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        told = [np.array([each.parameters().encode()], np.object_) for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", each)]) for each in told]
"""
#: A pattern of Triton's own tests.
PATTERN = "(?-i)MY_HEADER_.*|HTTP_Header|(?i)any_.*"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    (repository / "tells" / "1").mkdir(parents=True)
    (repository / "tells" / "config.pbtxt").write_text(CONFIG)
    (repository / "tells" / "1" / "model.py").write_text(CODE)
    flags = (f"--http-header-forward-pattern={PATTERN}", "--grpc-header-forward-pattern=(?-i)^my_|^(?i)OTHER")
    with serving(repository, *flags, "--grpc-port=0") as server:
        yield server
        assert server.stop() == 0, server.log.decode()


def test_case_matters_over_http_where_the_pattern_says_so(server: Server) -> None:
    tensor = tritonclient.http.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    headers = {"MY_HEADER_1": "1", "my_header_2": "2", "HTTP_Header": "3", "http_headers": "4", "Any_case": "5"}
    with tritonclient.http.InferenceServerClient(server.url) as client:
        told = client.infer("tells", [tensor], headers=headers).as_numpy("TOLD")
    assert told is not None
    assert json.loads(told[0]) == {"MY_HEADER_1": "1", "HTTP_Header": "3", "Any_case": "5"}


def test_flags_are_read_over_grpc(server: Server) -> None:
    tensor = tritonclient.grpc.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        response = client.infer("tells", [tensor], headers={"my_a": "1", "other": "2", "no_my_b": "3"})
    assert response is not None
    told = response.as_numpy("TOLD")
    assert told is not None
    assert json.loads(told[0]) == {"my_a": "1", "other": "2"}
