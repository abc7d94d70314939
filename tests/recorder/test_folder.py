"""recorder/folder.py: a ring of files by size and age, and deaths beside it, each the owner's alone."""

import random
from pathlib import Path

import pytest

from shoal.recorder.folder import MAX_DEATHS, RecordingFolder, files_of
from shoal.recorder.segment_file import FileReader
from tests.scarcity import files_of_at_most_a_page

MIB = 1 << 20


class Clock:
    """The wall clock, set by hand; files get their times from it."""

    def __init__(self) -> None:
        self.now_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_s


def entries_of(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [bytes(each) for each in FileReader(file)]


def test_entries_are_appended_to_one_file_of_the_owners_alone(tmp_path: Path) -> None:
    folder = RecordingFolder(tmp_path / "deep" / "er", 16 * MIB, 0, Clock())
    folder.write([b"one"])
    folder.write([b"two", b"three"])
    (path,) = files_of(tmp_path / "deep" / "er")
    assert entries_of(path) == [b"one", b"two", b"three"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_oldest_files_go_when_the_folder_is_full(tmp_path: Path) -> None:
    clock, noise = Clock(), random.Random(1)
    folder = RecordingFolder(tmp_path, 16 * MIB, 0, clock)
    for _ in range(40):
        clock.now_s += 1
        folder.write([noise.randbytes(MIB - 200)])
    files = files_of(tmp_path)
    assert 14 <= len(files) <= 16
    assert sum([path.stat().st_size for path in files]) <= 16 * MIB
    assert len({path.name for path in files}) == len(files)


def test_old_files_go(tmp_path: Path) -> None:
    clock = Clock()
    folder = RecordingFolder(tmp_path, 16 * MIB, 160.0, clock)
    for number in range(30):
        clock.now_s += 11
        folder.write([b"%d" % number])
    found = [int(each) for path in files_of(tmp_path) for each in entries_of(path)]
    assert found == list(range(30 - len(found), 30))
    assert 14 <= len(found) <= 16


def test_deaths_are_kept_beside_the_ring_and_bounded(tmp_path: Path) -> None:
    clock, noise = Clock(), random.Random(1)
    folder = RecordingFolder(tmp_path, 16 * MIB, 0, clock)
    folder.write_death([b"crash"])
    for _ in range(40):
        clock.now_s += 1
        folder.write([noise.randbytes(MIB - 200)])
    assert entries_of(files_of(tmp_path)[0]) == [b"crash"]
    for number in range(MAX_DEATHS + 3):
        clock.now_s += 1
        folder.write_death([b"%d" % number])
    deaths = [path for path in files_of(tmp_path) if "died" in path.name]
    assert [entries_of(path) for path in deaths] == [[b"%d" % number] for number in range(3, MAX_DEATHS + 3)]


def test_what_is_recorded_after_the_wall_clock_was_set_back_is_kept(tmp_path: Path) -> None:
    """Each new file went at once, as the oldest, until the clock had come to the dates of those before."""
    clock, noise = Clock(), random.Random(1)
    folder = RecordingFolder(tmp_path, 16 * MIB, 0, clock)
    for number in range(20):
        clock.now_s += 1
        folder.write([noise.randbytes(MIB - 200)])
        folder.write_death([b"%d" % number])
    clock.now_s -= 3600
    for number in range(20, 30):
        clock.now_s += 1
        folder.write([b"%d" % number, noise.randbytes(MIB - 200)])
        folder.write_death([b"%d" % number])
    files = files_of(tmp_path)
    kept = [entries_of(path)[0] for path in files if "died" not in path.name]
    assert [each for each in kept if len(each) == 2] == [b"%d" % number for number in range(20, 30)]
    assert 14 <= len(kept) <= 16
    deaths = [entries_of(path)[0] for path in files if "died" in path.name]
    assert sorted(deaths) == [b"%d" % number for number in range(30 - MAX_DEATHS, 30)]


def test_files_of_a_date_to_come_go_as_old_ones_do_and_a_file_of_before_is_ended(tmp_path: Path) -> None:
    clock = Clock()
    folder = RecordingFolder(tmp_path, 16 * MIB, 160.0, clock)
    for jump_s in (0, 10 * 365 * 86400, -10 * 365 * 86400, 11, -11):
        clock.now_s += jump_s
        folder.write([b"%d" % jump_s])
    assert [entries_of(path) for path in files_of(tmp_path)] == [[b"-315360000"], [b"-11"], [b"11"]]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    other = tmp_path / "notes.shoalrec"
    other.write_bytes(bytes(20 * MIB))
    clock = Clock()
    folder = RecordingFolder(tmp_path, 16 * MIB, 1.0, clock)
    for _ in range(5):
        clock.now_s += 100
        folder.write([b"x"])
    assert other.exists()


def test_an_old_file_that_vanishes_after_the_listing_costs_no_entry(tmp_path: Path) -> None:
    (tmp_path / "20200101T000000.000000-0001.shoalrec").symlink_to("vanished")  # it is listed, and there is no file
    folder = RecordingFolder(tmp_path, 16 * MIB, 0, Clock())
    folder.write([b"x"])
    assert entries_of(files_of(tmp_path)[-1]) == [b"x"]


def test_a_disk_that_refuses_raises_and_the_next_entry_begins_a_file(tmp_path: Path) -> None:
    folder = RecordingFolder(tmp_path / "file" / "in", 16 * MIB, 0, Clock())
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        folder.write([b"x"])
    (tmp_path / "file").unlink()
    folder.write([b"y"])
    (path,) = files_of(tmp_path / "file" / "in")
    assert entries_of(path) == [b"y"]


def test_a_full_disk_gets_no_file_for_each_attempt_and_keeps_whole_frames(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(5000)
    folder = RecordingFolder(tmp_path, 16 * MIB, 0, Clock())
    for _ in range(2):
        for _ in range(3):
            with files_of_at_most_a_page(), pytest.raises(OSError, match="File too large"):
                folder.write([noise])
            with files_of_at_most_a_page(), pytest.raises(OSError, match="File too large"):
                folder.write_death([noise])
        assert len(files_of(tmp_path)) <= 1
        folder.write([b"small"])
    first, second = files_of(tmp_path)
    assert first.read_bytes() == second.read_bytes()
    assert entries_of(first) == [b"small"]


def test_entries_after_the_removal_of_the_file_begin_another(tmp_path: Path) -> None:
    folder = RecordingFolder(tmp_path, 16 * MIB, 0, Clock())
    for name in (b"one", b"two"):
        folder.write([name])
        (path,) = files_of(tmp_path)
        assert entries_of(path) == [name]
        path.unlink()
