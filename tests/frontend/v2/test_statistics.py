"""frontend/v2/metadata.py: the batcher's cells as the statistics extension prints them."""

import orjson
import pytest

from shoal.errors import UnavailableError
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.metadata import all_statistics, model_statistics
from shoal.shm.counters import CELL, CounterTable
from tests.frontend.calls import call_of


def body(response: Response) -> bytes:
    return b"".join(response.chunks)


def count(table: CounterTable) -> None:
    """Ten requests for `écho b`, three of them out of the cache, in two executions; two failed."""
    row = table.row(4)
    for index, name in enumerate(CELL):
        row.cells[CELL[name]] = 100 + index
    row.cells[CELL["success_count"]] = 10
    row.cells[CELL["cache_hit_count"]] = 3
    row.cells[CELL["fail_count"]] = 2
    row.cells[CELL["execution_count"]] = 0
    row.count_execution(4, 1, 2, 3)
    row.count_execution(1, 10, 20, 30)
    row.count_execution(4, 1, 2, 3)
    row.publish()


EXPECTED = (
    '{"model_stats":[{"name":"écho b","version":"1","last_inference":110,"inference_count":108,"execution_count":3,'
    '"inference_stats":{"success":{"count":10,"ns":101},"fail":{"count":2,"ns":103},"queue":{"count":10,"ns":104},'
    '"compute_input":{"count":7,"ns":105},"compute_infer":{"count":7,"ns":106},"compute_output":{"count":7,"ns":107},'
    '"cache_hit":{"count":3,"ns":117},"cache_miss":{"count":118,"ns":119}},"response_stats":{},"batch_stats":['
    '{"batch_size":4,"compute_input":{"count":2,"ns":2},"compute_infer":{"count":2,"ns":4},'
    '"compute_output":{"count":2,"ns":6}},'
    '{"batch_size":1,"compute_input":{"count":1,"ns":10},"compute_infer":{"count":1,"ns":20},'
    '"compute_output":{"count":1,"ns":30}}],"memory_usage":[]}]}'
)


def test_every_figure_is_where_triton_has_it(state: ServerState, counters: CounterTable) -> None:
    count(counters)
    assert body(model_statistics(call_of(state, name="écho b"))).decode() == EXPECTED


def test_before_the_first_request_every_key_is_there(state: ServerState) -> None:
    assert body(model_statistics(call_of(state, name="simple", version="1"))) == (
        b'{"model_stats":[{"name":"simple","version":"1","last_inference":0,"inference_count":0,"execution_count":0,'
        b'"inference_stats":{"success":{"count":0,"ns":0},"fail":{"count":0,"ns":0},"queue":{"count":0,"ns":0},'
        b'"compute_input":{"count":0,"ns":0},"compute_infer":{"count":0,"ns":0},"compute_output":{"count":0,"ns":0},'
        b'"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},'
        b'"response_stats":{},"batch_stats":[],"memory_usage":[]}]}'
    )


def test_all_ready_versions_by_name_and_number(state: ServerState) -> None:
    rows = orjson.loads(body(all_statistics(call_of(state))))["model_stats"]
    assert [(row["name"], row["version"]) for row in rows] == [
        ("asleep", "7"),
        ("simple", "1"),
        ("simple", "3"),
        ("stream", "1"),
        ("écho b", "1"),
    ]
    rows = orjson.loads(body(model_statistics(call_of(state, name="simple"))))["model_stats"]
    assert [row["version"] for row in rows] == ["1", "3"]


def test_a_stopping_server_gives_none(state: ServerState) -> None:
    state.exiting = True
    with pytest.raises(UnavailableError, match=r"^Server not ready$"):
        all_statistics(call_of(state))
    with pytest.raises(UnavailableError, match=r"^Server not ready$"):
        model_statistics(call_of(state, name="simple"))
