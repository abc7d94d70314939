"""Who shares a batch with whom, in a test: requests that run alone, and requests of different lengths."""

from pathlib import Path
from typing import Any

import numpy as np

from shoal.testing import Server
from tests.testing.models import DOUBLE, IMPORTS, WORDS, write_python

#: A minute: only what cannot wait, or has no room, goes before.
BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 60000000 }"
LENGTHS = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "ragged" value { string_value: "bucket" } }
parameters { key: "max_batch_elements" value { string_value: "16" } }
"""


def test_a_request_that_is_to_run_alone_shares_no_batch_and_does_not_wait(tmp_path: Path) -> None:
    write_python(tmp_path, "double", DOUBLE, BATCHING)
    with Server(tmp_path) as server:
        parameters: dict[str, dict[str, Any]] = {
            "usual": {}, "alone": {"deterministic": True}, "other": {"deterministic": "false"},
        }  # fmt: skip
        futures = [
            server.submit("double", {"X": [[1.0, 2.0]]}, request_id=name, parameters=each)
            for name, each in parameters.items()
        ]
        assert [future.result()["Y"].tolist() for future in futures] == [[[2, 4]]] * 3
        assert [batch.request_ids for batch in server.batches] == [("usual",), ("alone",), ("other",)]
        assert [batch.time_ms for batch in server.batches] == [0, 0, 60_000]


def test_a_python_model_gets_requests_of_one_bucket_up_to_so_many_elements(tmp_path: Path) -> None:
    (tmp_path / "double" / "1").mkdir(parents=True)
    (tmp_path / "double" / "config.pbtxt").write_text(f"{LENGTHS}\n{BATCHING}")
    (tmp_path / "double" / "1" / "model.py").write_text(f"{IMPORTS}{WORDS}\n\nclass TritonPythonModel:\n{DOUBLE}")
    with Server(tmp_path) as server:
        futures = {
            length: server.submit("double", {"X": np.ones((1, length), np.float32)}, request_id=str(length))
            for length in (5, 3, 8, 4, 2)
        }
        for length, future in futures.items():
            assert future.result()["Y"].tolist() == [[2.0] * length]
        assert [batch.request_ids for batch in server.batches] == [("5", "8"), ("3", "4"), ("2",)]
        assert [batch.time_ms for batch in server.batches] == [0, 60_000, 60_000]
