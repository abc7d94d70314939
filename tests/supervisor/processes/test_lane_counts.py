"""How many lanes a server starts by itself: by hand-computed examples, and control groups as containers have them."""

import os
from pathlib import Path

import pytest

from shoal.supervisor.processes.cores import num_grpc_lanes, num_http_lanes, num_usable_cores


def test_lanes_grow_with_the_cores_and_stay_few() -> None:
    cores = [1, 2, 4, 5, 6, 7, 8, 16, 96]
    assert [num_http_lanes(each) for each in cores] == [2, 2, 2, 2, 3, 3, 4, 4, 4]
    assert [num_grpc_lanes(each) for each in cores] == [1, 1, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("files", "num_cores"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_a_containers_share_counts(
    files: dict[str, str], num_cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    for name, text in {"proc/self/cgroup": "1:cpu,cpuacct:/\n0::/\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert num_usable_cores(tmp_path / "proc", tmp_path) == num_cores
