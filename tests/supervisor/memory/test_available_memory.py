"""What the kernel says is left, from its own files and from written ones."""

from pathlib import Path

import pytest

from shoal.supervisor.memory.available_memory import available_nbytes


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       9000 kB\nMemAvailable:   5000 kB\nSwapTotal: 0 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/outer/inner\n")
    return tmp_path / "proc"


def write_group(directory: Path, limit: str, used: int, inactive_file: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


def test_this_machine_has_some() -> None:
    assert 0 < available_nbytes() < 1 << 50


def test_without_groups_the_machine_decides(proc: Path, tmp_path: Path) -> None:
    assert available_nbytes(proc, tmp_path / "cgroup") == 5_120_000


@pytest.mark.parametrize(
    ("inner", "outer", "nbytes"),
    [
        (("max", 10, 0), ("max", 10, 0), 5_120_000),
        (("3000000", 1000000, 400000), ("max", 10, 0), 2_400_000),
        (("3000000", 1000000, 0), ("1500000", 1400000, 0), 100_000),
        (("9000000", 1000000, 0), ("max", 10, 0), 5_120_000),
        (("1000", 5000, 0), ("max", 10, 0), 0),
    ],
    ids=["unlimited", "own limit", "limit above", "larger than the machine", "overdrawn"],
)
def test_the_tightest_limit_decides(
    proc: Path, tmp_path: Path, inner: tuple[str, int, int], outer: tuple[str, int, int], nbytes: int
) -> None:
    write_group(tmp_path / "cgroup" / "outer" / "inner", *inner)
    write_group(tmp_path / "cgroup" / "outer", *outer)
    assert available_nbytes(proc, tmp_path / "cgroup") == nbytes


@pytest.mark.parametrize(
    ("name", "text"), [("memory.max", "much"), ("memory.stat", "a b c"), ("memory.stat", "anon 1")]
)
def test_figures_that_are_not_understood_are_passed_over(proc: Path, tmp_path: Path, name: str, text: str) -> None:
    group = tmp_path / "cgroup" / "outer"
    write_group(group, "1000", 0, 0)
    (group / name).write_text(text)
    assert available_nbytes(proc, tmp_path / "cgroup") == 5000 * 1024


@pytest.mark.parametrize(
    ("limit", "nbytes"), [("9223372036854771712", 5_120_000), ("3000000", 2_400_000)], ids=["unlimited", "limited"]
)
def test_version_1_has_other_files(proc: Path, tmp_path: Path, limit: str, nbytes: int) -> None:
    (proc / "self" / "cgroup").write_text("4:memory:/outer\n0::/\n")
    group = tmp_path / "cgroup" / "memory" / "outer"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (group / "memory.usage_in_bytes").write_text("1000000\n")
    (group / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 400000\n")
    assert available_nbytes(proc, tmp_path / "cgroup") == nbytes
