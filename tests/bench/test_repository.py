"""bench/repository.py: the table, made once for both servers, holds the answers that are expected."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.repository import write_for_shoal, write_for_triton
from bench.workloads import EMBEDDING, expected


def test_a_table_is_made_for_both_servers(tmp_path: Path) -> None:
    model = replace(EMBEDDING, table_rows=10_000)
    shoal, triton = write_for_shoal(tmp_path, model) / "embedding", write_for_triton(tmp_path, model) / "embedding"
    table = np.load(shoal / "1" / "vectors.npy", mmap_mode="r")
    assert table.shape == (10_000, 128)
    assert np.array_equal(table[list(map(int, model.values))].ravel(), expected(model))
    assert (triton / "1" / "table.npy").samefile(shoal / "1" / "vectors.npy")
    configs = [(folder / "config.pbtxt").read_text() for folder in (shoal, triton)]
    assert [config.count('backend: "embedding"') for config in configs] == [1, 0]
    assert all('input { name: "ids" data_type: TYPE_INT64 dims: [64] }' in config for config in configs)
