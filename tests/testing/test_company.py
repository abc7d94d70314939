"""Who shares a batch with whom, in a test: requests that run alone."""

from pathlib import Path
from typing import Any

from shoal.testing import Server
from tests.testing.models import DOUBLE, write_python

#: A minute: only what cannot wait, or has no room, goes before.
BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 60000000 }"


def test_a_request_that_is_to_run_alone_has_no_company_and_waits_for_none(tmp_path: Path) -> None:
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
