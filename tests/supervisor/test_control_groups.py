"""The CPU time that control groups of both versions grant, from written files; the other figures are read in
memory/available_memory.py and processes/oom_kills.py."""

from pathlib import Path

import pytest

from shoal.supervisor.control_groups import cpu_quota


def test_the_least_quota_above_counts(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (cgroups / "outer" / "inner").mkdir(parents=True)
    assert cpu_quota(proc, cgroups) is None
    (cgroups / "outer" / "inner" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(proc, cgroups) is None
    (cgroups / "outer" / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(proc, cgroups) == 1.5


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("50000", 0.5)])
def test_version_1_has_other_files(quota: str, cores: float | None, tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup" / "cpu" / "docker" / "1234"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:memory:/docker/1234\n3:cpu,cpuacct:/docker/1234\n0::/\n")
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(proc, tmp_path / "cgroup") == cores


@pytest.mark.parametrize("text", ["max\n", "50000\n", "", "50000 0\n", "many few\n", "1 2 3\n"])
def test_a_quota_that_is_not_understood_is_passed_over(text: str, tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("nonsense\n0::/outer/inner\n")
    (cgroups / "outer" / "inner").mkdir(parents=True)
    (cgroups / "outer" / "inner" / "cpu.max").write_text(text)
    assert cpu_quota(proc, cgroups) is None
    (cgroups / "outer" / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(proc, cgroups) == 1.5


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path) is None
