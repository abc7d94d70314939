"""oom_kills.py: written control groups of both versions, and this machine's own."""

from pathlib import Path

import pytest

from shoal.supervisor.processes.oom_kills import OomKills

MIB = 1 << 20


class Machine:
    """Files as the kernel shows them."""

    def __init__(self, root: Path, lines: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "meminfo", "MemTotal:       8192 kB\nMemFree: 1 kB\n")
        self.write(self.proc / "self" / "cgroup", lines)
        self.oom_kills = OomKills(self.proc, self.cgroups)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def set_kills(self, count: int) -> None:
        self.write(self.cgroups / "a" / "memory.events", f"low 0\nhigh 0\nmax 7\noom 9\noom_kill {count}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One of version 2."""
    return Machine(tmp_path, "0::/a\n")


def test_this_machine_can_be_asked() -> None:
    oom_kills = OomKills()
    assert oom_kills.count() >= 0
    assert oom_kills.claim(oom_kills.count()) is False
    assert 0 < oom_kills.limit_bytes() < 1 << 50


def test_a_kill_since_its_start_explains_one_death_only(machine: Machine) -> None:
    machine.set_kills(3)
    started = machine.oom_kills.count()
    assert started == 3
    assert machine.oom_kills.claim(started) is False
    machine.set_kills(4)
    assert machine.oom_kills.claim(started) is True
    assert machine.oom_kills.claim(started) is False
    machine.set_kills(6)
    assert [machine.oom_kills.claim(started) for _ in range(3)] == [True, True, False]


def test_a_kill_before_its_start_explains_nothing(machine: Machine) -> None:
    machine.set_kills(1)
    assert machine.oom_kills.claim(1) is False


@pytest.mark.parametrize("text", ["oom_kill\n", "oom_kill many\n", "a b c\n"])
def test_figures_that_are_not_understood_are_none(machine: Machine, text: str) -> None:
    machine.write(machine.cgroups / "a" / "memory.events", text)
    assert machine.oom_kills.count() == 0


def test_version_1_has_other_files(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "9:name=systemd:/\n4:memory:/b/c\n0::/\n")
    group = machine.cgroups / "memory" / "b" / "c"
    machine.write(group / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    machine.write(group / "memory.limit_in_bytes", "9223372036854771712\n")
    machine.write(group.parent / "memory.limit_in_bytes", f"{4 * MIB}\n")
    assert machine.oom_kills.count() == 2
    assert machine.oom_kills.limit_bytes() == 4 * MIB


def test_a_path_of_the_host_leads_to_the_top(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/docker/1234\n")
    machine.write(machine.cgroups / "memory.events", "oom_kill 5\n")
    machine.write(machine.cgroups / "memory.max", "max\n")
    assert machine.oom_kills.count() == 5
    assert machine.oom_kills.limit_bytes() == 8 * MIB


def test_the_tightest_limit_counts(machine: Machine) -> None:
    machine.write(machine.cgroups / "a" / "memory.max", f"{3 * MIB}\n")
    machine.write(machine.cgroups / "memory.max", f"{2 * MIB}\n")
    assert machine.oom_kills.limit_bytes() == 2 * MIB


def test_without_groups_nothing_is_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "")
    assert machine.oom_kills.count() == 0
    assert machine.oom_kills.limit_bytes() == 8 * MIB
