"""Who is asked for its ledger and when, and what the one line says; the test plays the processes that are asked."""

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.messages.shared import LedgerWanted
from shoal.open_files import num_open
from shoal.shm import segment
from shoal.shm.layout import LINK, Geometry
from shoal.supervisor import ledger
from shoal.supervisor.ledger import Ledger, num_children, shared_bytes
from tests.supervisor.star_rig import Process, StarRig

ASKED = [LedgerWanted()]


class Ground(StarRig):
    """A star with everybody joined, and the ledger of its supervisor. `lines` are what it has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.star)
        self.lines: list[dict[str, Any]] = []

    def begin(self) -> None:
        self.ledger.ask()
        self.clock.settle()

    def answer(self, *processes: Process) -> None:
        """They tell a number of their own, and acknowledge."""
        for process in processes:
            process.member.counts = {"number": self.all.index(process)}
            self.acknowledge(process)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """Whatever earlier tests have forgotten is closed now, and not between two counts of this process's descriptors."""
    gc.collect()


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    made = Ground()

    def told(sentence: str, text: str) -> None:
        assert sentence == "ledger %s"
        made.lines.append(json.loads(text))

    monkeypatch.setattr(logging.getLogger(ledger.__name__), "info", told)
    yield made
    made.close()


def numbers(told: dict[str, Any]) -> list[int]:
    return [each["number"] for each in told["processes"]]


def test_processes_are_asked_in_the_order_in_which_memory_goes_back(ground: Ground) -> None:
    ground.begin()
    assert ground.a.heard() == ground.b.heard() == ASKED
    ground.answer(ground.a)
    assert ground.batcher.heard() == []
    ground.answer(ground.b)
    assert ground.batcher.heard() == ASKED
    assert ground.third.heard() == []
    ground.answer(ground.batcher)
    assert ground.third.heard() == ground.fourth.heard() == ASKED
    assert ground.lines == []
    ground.answer(ground.fourth, ground.third)
    (told,) = ground.lines
    assert numbers(told) == [1, 2, 0, 3, 4]
    assert told["silent"] == []
    assert {each["pid"] for each in told["processes"]} == {1}


@pytest.mark.usefixtures("no_garbage")
def test_the_supervisor_tells_its_own(ground: Ground) -> None:
    ground.make(ground.a, ground.client_a)
    ground.begin()
    ground.answer(ground.a, ground.b)
    ground.answer(ground.batcher)
    ground.answer(ground.third, ground.fourth)
    (told,) = ground.lines
    own = told["supervisor"]
    assert own == {
        "pid": os.getpid(), "descriptors": num_open(), "children": num_children(), "shared_bytes": shared_bytes(),
        "oversize_acquired": 1, "oversize_released": 0,
    }  # fmt: skip
    assert own["shared_bytes"] >= ground.star.nbytes


def test_who_is_silent_is_named_and_the_others_are_told(ground: Ground) -> None:
    ground.begin()
    ground.answer(ground.b)
    ground.clock.pass_time(ledger.ANSWER_S)
    ground.answer(ground.batcher)
    ground.answer(ground.third)
    ground.clock.pass_time(ledger.ANSWER_S)
    (told,) = ground.lines
    assert numbers(told) == [2, 0, 3]
    assert [each["pid"] for each in told["silent"]] == [1, 1]
    ground.answer(ground.a, ground.fourth)  # too late
    ground.clock.pass_time(ledger.ANSWER_S)
    assert len(ground.lines) == 1


def test_the_dead_are_not_waited_for(ground: Ground) -> None:
    ground.begin()
    for process in (ground.a, ground.batcher, ground.third):
        process.member.hang_up()
        ground.star.acknowledgements.gone(process.member)
    ground.star.batcher = None
    ground.answer(ground.b)
    ground.answer(ground.fourth)
    (told,) = ground.lines
    assert numbers(told) == [2, 4]
    assert told["silent"] == []


def test_one_that_is_asked_for_meanwhile_is_the_one_under_way_and_the_next_asks_again(ground: Ground) -> None:
    for count in (1, 2):
        ground.begin()
        ground.begin()
        assert ground.a.heard() == ASKED
        ground.answer(ground.a, ground.b)
        ground.answer(ground.batcher)
        ground.answer(ground.third, ground.fourth)
        assert len(ground.lines) == count


def test_children_are_counted_until_they_are_reaped() -> None:
    before = num_children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert num_children() == before + 1
        child.communicate(b"\n")
    assert num_children() == before


def test_a_segment_counts_once_until_its_last_descriptor_is_closed() -> None:
    before = shared_bytes()
    for sealed in (False, True):
        fd = segment.create(LINK, 1, Geometry(0, 4096), sealed=sealed)
        second = segment.read_only(fd)
        assert shared_bytes() == before + 3 * 4096
        os.close(fd)
        assert shared_bytes() == before + 3 * 4096
        os.close(second)
    other = os.memfd_create("shoal-message")
    os.ftruncate(other, 4096)
    assert shared_bytes() == before
    os.close(other)
