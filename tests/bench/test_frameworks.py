"""bench/frameworks.py and its cases: they compute what they say, and a loop of their own is timed."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.errors import BenchmarkError
from bench.framework_cases import CASES, Array, Case
from bench.frameworks import Cores, batch_of, main, run_bare


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_case_computes_a_batch(name: str, tmp_path: Path) -> None:
    if name == "tensorflow":
        pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'shoal[tensorflow]'")
    case = CASES[name]
    case.save(tmp_path / case.filename)
    run = case.open(tmp_path / case.filename)
    batch = batch_of(2, case)
    answer = run(batch)
    assert answer.shape == (2, case.outputs)
    assert answer.dtype == np.float32
    assert np.allclose(run(batch[1:]), answer[1:], atol=1e-5)


def test_the_bare_loop_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes: set[int] = set()

    def run(batch: Array) -> Array:
        sizes.add(len(batch))
        return batch

    case = Case("", "", 3, 3, lambda _file: None, lambda _file: run)
    monkeypatch.setattr(sys, "stdin", io.StringIO("4 0.001\n2 0.001\n"))
    run_bare(case, Path())
    speeds = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sizes == {4, 2}
    assert [rate > 0 and 0 <= own_ms == cpu_ms for rate, own_ms, cpu_ms in speeds] == [True, True]


def test_a_framework_may_have_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {2, 5, 6})
    shared, divided = Cores.divided(0), Cores.divided(2)
    assert [sorted(each) for each in (shared.framework, shared.others)] == [[2, 5, 6], [2, 5, 6]]
    assert [sorted(each) for each in (divided.framework, divided.others)] == [[2, 5], [6]]
    assert divided.policy == ["--host-policy=cpu,cpu-cores=2-2,5-5"]
    with pytest.raises(BenchmarkError, match="of 3 cores at most 2 can be the framework's own"):
        Cores.divided(3)


def test_all_but_instances_is_kept_off_their_cores() -> None:
    program = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(flush=True)"
    first = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            Cores(frozenset(), frozenset({first})).keep_apart(process.pid)
            threads = os.listdir(f"/proc/{process.pid}/task")
            assert [os.sched_getaffinity(int(thread)) for thread in threads] == [{first}, {first}]
        finally:
            process.kill()


def test_an_unknown_case_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["caffe"])
    assert f"no case is called 'caffe'; there are {', '.join(CASES)}" in capsys.readouterr().err


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shoal.workers.backends.tensorflow", None)
    main(["tensorflow"])
    said = capsys.readouterr().out
    assert said.startswith("tensorflow: not measured: backend 'tensorflow' cannot be imported")
    assert said.endswith("Install it with: pip install 'shoal[tensorflow]'\n")
