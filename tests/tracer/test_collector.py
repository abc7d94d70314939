"""Which file a trace goes to and when; how many are taken; and that nothing is lost when settings change."""

import json
from pathlib import Path

import pytest

from shoal.tracer.collector import Collector
from shoal.tracer.settings import TIMESTAMPS, TraceSetting
from shoal.tracer.trace import STAMPS, Trace


class Folder:
    """A collector that writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.collector = Collector(1, 0.0, None)

    def setting(self, revision: int, count: int = -1, log_frequency: int = 0, file: str = "t") -> TraceSetting:
        return TraceSetting(TIMESTAMPS, 1, count, log_frequency, file and str(self.path / file), revision=revision)

    def add(self, num_traces: int, revision: int = 1, *, is_counted: bool = True) -> int:
        """How many were taken."""
        trace = Trace(revision, is_counted, f"m{revision}", 1, "", [1] * len(STAMPS), [], {})
        return sum([self.collector.add(trace, 0) for _ in range(num_traces)])

    def files(self) -> dict[str, list[int]]:
        """The traces' numbers by file."""
        found = {}
        for path in sorted(self.path.iterdir()):
            found[path.name] = [each["id"] for each in json.loads(path.read_text()) if "model_name" in each]
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_without_count_or_frequency_all_go_to_one_file_as_they_come(folder: Folder) -> None:
    folder.collector.set([folder.setting(1)])
    assert folder.add(2) == 2
    assert folder.files() == {}
    assert folder.collector.write() == {}
    assert folder.files() == {"t": [1, 2]}
    folder.add(1)
    folder.collector.close()
    assert folder.files() == {"t": [1, 2, 3]}


def test_a_frequency_makes_files_of_so_many(folder: Folder) -> None:
    folder.collector.set([folder.setting(1, log_frequency=2)])
    folder.add(5)
    folder.collector.write()
    assert folder.files() == {"t.0": [1, 2], "t.1": [3, 4]}
    folder.collector.close()
    assert folder.files() == {"t.0": [1, 2], "t.1": [3, 4], "t.2": [5]}


def test_a_count_ends_with_a_file_that_has_an_index(folder: Folder) -> None:
    folder.collector.set([folder.setting(1, count=3)])
    assert folder.add(2) == 2
    assert folder.collector.write() == {1: 2}
    assert folder.files() == {}
    assert folder.add(3) == 1
    assert folder.collector.write() == {1: 1}
    assert folder.collector.write() == {}
    assert folder.files() == {"t.0": [1, 2, 3]}
    folder.collector.close()
    assert folder.files() == {"t.0": [1, 2, 3]}


def test_a_count_that_is_not_reached_ends_in_the_one_file(folder: Folder) -> None:
    folder.collector.set([folder.setting(1, count=3)])
    folder.add(2)
    folder.collector.set([folder.setting(2, count=3)])
    assert folder.files() == {"t": [1, 2]}


def test_a_count_and_a_frequency(folder: Folder) -> None:
    folder.collector.set([folder.setting(1, count=5, log_frequency=2)])
    assert folder.add(9) == 5
    assert folder.files() == {"t.0": [1, 2], "t.1": [3, 4], "t.2": [5]}


def test_settings_that_stay_go_on_and_late_traces_of_others_are_dropped(folder: Folder) -> None:
    first, second = folder.setting(1, log_frequency=3), folder.setting(2, log_frequency=3)
    folder.collector.set([first, second])
    folder.add(2, 1)
    folder.add(2, 2)
    folder.collector.set([first, folder.setting(3, log_frequency=3)])
    assert folder.files() == {"t.0": [3, 4]}
    assert folder.add(1, 2) == 0
    assert folder.add(1, 1) == 1
    assert folder.files() == {"t.0": [3, 4], "t.1": [1, 2, 5]}


def test_traces_that_come_before_their_setting_wait_for_it(folder: Folder) -> None:
    folder.add(1, 5)
    folder.add(1, 9)
    folder.collector.set([folder.setting(5)])
    folder.add(1, 5)
    folder.collector.write()
    assert folder.files() == {"t": [1, 2]}
    folder.collector.set([folder.setting(10)])
    folder.collector.close()
    assert folder.files() == {"t": [1, 2]}  # there was another in between


def test_each_file_has_its_own_indices(folder: Folder) -> None:
    folder.collector.set([folder.setting(1, log_frequency=1, file="a"), folder.setting(2, log_frequency=1, file="b")])
    folder.add(2, 1)
    folder.add(1, 2)
    assert folder.files() == {"a.0": [1], "a.1": [2], "b.0": [3]}


def test_what_only_its_context_had_traced_is_not_counted(folder: Folder) -> None:
    folder.collector.set([folder.setting(1, count=0)])
    assert folder.add(1) == 0
    assert folder.add(2, is_counted=False) == 2
    assert folder.collector.write() == {}
