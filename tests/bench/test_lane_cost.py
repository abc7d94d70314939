"""The cost of a lane: lanes run for real, their clients are answered, and no other process is counted."""

import os

import pytest

from bench.instructions import find_perf
from bench.lane_cost import CASES, SMALL, Case, Opcodes, Run
from bench.own_instructions import OwnInstructions
from shoal.interpreter import is_compiled

needs_counters = pytest.mark.skipif(
    find_perf() is None, reason="NOT CHECKED: instruction counts, since perf is missing or this machine has no counters"
)


@needs_counters
def test_instructions_are_those_of_this_thread() -> None:
    counter = OwnInstructions()
    before = counter.read()
    os.getppid()  # a system call
    little = counter.read() - before - counter.own
    sum(range(100_000))
    much = counter.read() - before - counter.own
    counter.close()
    assert 0 <= little < 100_000 < much


@needs_counters
@pytest.mark.parametrize("case", [each for each in CASES if each.model is SMALL], ids=lambda each: each.name)
def test_a_lane_answers_all_and_is_counted(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setenv("SHOAL_SEND_FD", "")  # it has one of its own
    run = Run(case, 32, None)
    run.run()
    assert run.num_answers >= 32
    assert 10_000 < run.instructions / run.num_answers < 1_000_000


@pytest.mark.skipif(is_compiled(), reason="compiled, a lane's functions have no bytecodes")
def test_bytecodes_are_counted_by_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SEND_FD", "")
    opcodes = Opcodes()
    Run(CASES[0], 3, opcodes).run()
    assert opcodes.counts["known_request.py", "read"] > 3 * 10
    assert not [function for file, function in opcodes.counts if file == "lane_star.py"]


def test_a_known_response_takes_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SEND_FD", "")
    opcodes = Opcodes()
    Run(CASES[0], 3, opcodes).run()
    files = [file for file, function in opcodes.counts if function == "known_response"]
    assert files == ([] if is_compiled() else ["responses.py"])  # a compiled function has no bytecode
