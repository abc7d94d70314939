"""frontend/metrics/listener.py: /proc as a test writes it, and as it is."""

from pathlib import Path

from shoal.frontend.metrics.listener import Cpu

MEMORY = "MemTotal:  1000 kB\nMemFree:   100 kB\nMemAvailable:  600 kB\nHugePages_Total:   0\n"


def write(proc: Path, *ticks: int) -> None:
    line = " ".join(map(str, ticks))
    (proc / "stat").write_text(f"cpu  {line}\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n")
    (proc / "meminfo").write_text(MEMORY)


def test_utilization_is_of_the_time_since_the_last_look(tmp_path: Path) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    write(tmp_path, 100, 10, 20, 1000, 50, 1, 2, 3, 40, 0)
    cpu = Cpu(tmp_path)
    write(tmp_path, 110, 11, 22, 1070, 60, 2, 3, 8, 90, 9)
    read = cpu.read()
    assert read == {"utilization": 0.2, "memory_total_bytes": 1024000, "memory_used_bytes": 409600}
    write(tmp_path, 110, 11, 22, 1080, 60, 2, 3, 8, 90, 9)
    assert cpu.read()["utilization"] == 0.0
    assert cpu.read()["utilization"] == 0.0  # no time has passed


def test_counters_that_went_back_count_as_nothing(tmp_path: Path) -> None:
    write(tmp_path, 100, 0, 0, 100, 0, 0, 0, 0, 0, 0)
    cpu = Cpu(tmp_path)
    write(tmp_path, 110, 0, 0, 90, 0, 0, 0, 0, 0, 0)
    assert cpu.read()["utilization"] == 1.0


def test_this_machine_has_figures() -> None:
    read = Cpu().read()
    assert 0 <= read["utilization"] <= 1
    assert 0 < read["memory_used_bytes"] < read["memory_total_bytes"]
