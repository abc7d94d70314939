"""How long the server's processes may spin, by the cores that there are."""

import os

import pytest

from shoal.options import ServerOptions
from shoal.placement import Placement
from shoal.supervisor.processes.cores import batcher_spin_ns, worker_spin_ns

ALONE = Placement("m_0_0", "m_0", "KIND_CPU", 0, (0,))


@pytest.mark.parametrize(("num_cores", "spin_ns"), [(1, 0), (2, 70_000), (64, 70_000)])
def test_no_process_spins_on_a_single_core(num_cores: int, spin_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(num_cores)))
    options = ServerOptions(spin_us=70)
    assert batcher_spin_ns(options) == worker_spin_ns(options, ALONE) == spin_ns


def test_instances_that_share_a_process_do_not_spin() -> None:
    assert worker_spin_ns(ServerOptions(), ALONE._replace(process_cores=(0, 1))) == 0
