"""Tables in files: what is refused and with which words, what is mapped, and how one replaces another."""

import errno
import mmap
import os
import re
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.datatypes import BYTES, FP32, INT64
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.workers.backends.embedding.rows import TableSpec
from shoal.workers.backends.embedding.table import TableRows, open_table
from shoal.workers.tensors import Array

SPEC = TableSpec(INT64, FP32, (4,), None, FP32)
TABLE: Array = np.arange(40, dtype=np.float32).reshape(10, 4)


def rows_of(path: Path, spec: TableSpec = SPEC) -> TableRows:
    rows = TableRows(str(path), "table 't' of model 'm'", spec)
    rows.refresh()
    return rows


def take(rows: TableRows, *ids: int) -> Array:
    out: Array = np.empty((len(ids), *rows.row_shape), np.float32)
    rows.take(rows.find(np.array(ids)).rows, out)
    return out


def reason(path: Path, spec: TableSpec = SPEC) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        rows_of(path, spec)
    return str(caught.value).removeprefix("table 't' of model 'm': ")


def npy(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


# --- what is refused ---


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (TABLE[:, :3], "rows have shape [3], the configuration of the output expects [4]"),
        (TABLE[0], "rows have shape [], the configuration of the output expects [4]"),
        (TABLE[:0], "'t.npy' cannot be read: it has no rows"),
        (TABLE[:, :0], "rows have shape [0], which holds no numbers"),
        (TABLE.astype(">f4"), "'t.npy' cannot be read: it holds >f4, which is not read"),
        (TABLE.astype(np.complex64), "'t.npy' cannot be read: it holds complex64, which is not read"),
        (np.array([["a"] * 4], object), "'t.npy' cannot be read: it holds object, which is not read"),
        (np.zeros(2, [("a", "f4")]), "'t.npy' cannot be read: it holds [('a', '<f4')], which is not read"),
        (
            np.asfortranarray(TABLE),
            "'t.npy' cannot be read: its columns lie together instead of its rows (fortran_order); save it in C order",
        ),
        (np.zeros((2, 4), np.bool_), "'vectors.npy' holds bool, which cannot be given as TYPE_FP32"),
    ],
)
def test_an_array_that_is_no_table(tmp_path: Path, array: Array, expected: str) -> None:
    (tmp_path / "t.npy").write_bytes(npy(array))
    assert reason(tmp_path / "t.npy") == expected


def test_an_object_array_is_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    np.save(tmp_path / "t.npy", np.array([[Bomb()] * 4], object), allow_pickle=True)
    assert "it holds object" in reason(tmp_path / "t.npy")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("cut", [0, 5, 20, 127, 128, 287])
def test_a_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    (tmp_path / "t.npy").write_bytes(npy(TABLE)[:cut])
    assert reason(tmp_path / "t.npy").startswith("'t.npy' cannot be read: ")


def test_a_file_that_is_too_short_says_so(tmp_path: Path) -> None:
    (tmp_path / "t.npy").write_bytes(npy(TABLE)[:-4])
    assert reason(tmp_path / "t.npy") == ("'t.npy' cannot be read: it has 284 bytes, shape [10,4] of float32 needs 288")


def test_numbers_off_their_alignment_are_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }\n"
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16))
    assert "its data begins at byte 70, which is not aligned" in reason(tmp_path / "t.npy")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::SyntaxWarning")  # numpy's and Python's about such texts
@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_and_nothing_else(data: st.DataObject, tmp_path_factory: Any) -> None:
    whole = bytearray(npy(TABLE))
    for position in data.draw(st.lists(st.integers(0, 127), min_size=1, max_size=4)):
        whole[position] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.npy"
    path.write_bytes(whole)
    try:
        table = open_table(str(path), SPEC)
    except InvalidArgumentError:
        return
    assert table.vectors[len(table.vectors) - 1].shape == (4,)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"unable to find table 't' of model 'm': .*/t\.npy'"):
        rows_of(tmp_path / "t.npy")


@pytest.mark.parametrize(
    ("files", "spec", "expected"),
    [
        ({"ids": np.arange(9)}, SPEC, "'ids.npy' has shape [9], expected one id for each of the 10 rows"),
        (
            {"ids": np.arange(10, dtype=np.int32)}, SPEC,
            "'ids.npy' holds int32, the input's TYPE_INT64 needs int64",
        ),
        (
            {"ids": np.arange(10)}, TableSpec(BYTES, FP32, (4,), None, FP32),
            "'ids.npy' holds int64, the input's TYPE_STRING needs S (bytes of a fixed size)",
        ),
        ({}, TableSpec(BYTES, FP32, (4,), None, FP32), "ids of TYPE_STRING need a directory with 'ids.npy' in it"),
        (
            {"ids": np.arange(10)[::-1]}, SPEC,
            "'ids.npy' is not sorted; rows and their ids must be in ascending order of the ids",
        ),
        (
            {"scales": np.ones(10)}, TableSpec(INT64, FP32, (4,), 2.0, FP32),
            "there are 'scales.npy' and the setting scale; only one of them can be",
        ),
        (
            {"scales": np.ones(9)}, SPEC,
            "'scales.npy' has float64 of shape [9], expected floats, one or one for each of the 10 rows",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_go_together(tmp_path: Path, files: dict[str, Array], spec: TableSpec, expected: str) -> None:
    for name, array in {"vectors": TABLE, **files}.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert reason(tmp_path, spec) == expected


def test_a_directory_without_vectors(tmp_path: Path) -> None:
    assert reason(tmp_path).startswith("'vectors.npy' cannot be read: [Errno 2]")


# --- what is mapped ---


def test_the_file_is_mapped_shared_and_read_only(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", TABLE)
    rows = rows_of(tmp_path / "t.npy")
    assert re.search(r" r--s [0-9a-f ]+ .*/t\.npy$", line := mapping(tmp_path / "t.npy"), re.MULTILINE), line
    assert take(rows, 3).tolist() == [TABLE[3].tolist()]


def mapping(path: Path) -> str:
    [line] = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    return line


def test_opening_reads_no_pages_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t.npy"
    with path.open("wb") as file:
        file.write(npy(np.zeros((1 << 20, 4), np.float32))[:128])
        file.truncate(128 + (1 << 24))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    rows = rows_of(path)
    assert resident_kib(path) == 0
    take(rows, 5, 1 << 19)
    assert 0 < resident_kib(path) <= 2 * 64  # the kernel maps what lies around, where it is in memory


def resident_kib(path: Path) -> int:
    _, _, rest = Path("/proc/self/smaps").read_text().partition(f"{path}\n")
    return int(rest.split("Rss:")[1].split()[0])


def test_rows_whose_pages_are_on_the_disk_are_asked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    class Watched(mmap.mmap):
        def madvise(self, option: int, *span: int) -> None:
            super().madvise(option, *span)
            if option == mmap.MADV_WILLNEED:
                start, length = span
                asked.append((start, length))

    monkeypatch.setattr(mmap, "mmap", Watched)
    path, table = tmp_path / "t.npy", np.arange(1 << 20, dtype=np.float32).reshape(-1, 4)
    np.save(path, table)
    rows = rows_of(path)
    ids = [0, len(table) - 1, *np.random.default_rng(0).integers(0, len(table), 62).tolist()]
    assert np.array_equal(take(rows, *ids), table[ids])
    assert len(asked) == len(ids)
    for (start, length), number in zip(asked, ids, strict=True):
        begin = 128 + 16 * number
        assert start % mmap.PAGESIZE == 0
        assert start <= begin < start + mmap.PAGESIZE
        assert start + length == begin + 16


# --- how one replaces another ---


def replace(path: Path, content: Any) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content if isinstance(content, bytes) else npy(content))
    new.rename(path)


def test_a_new_file_is_served_from_the_next_batch_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "t.npy"
    replace(path, TABLE)
    rows = rows_of(path)
    replace(path, TABLE + 100)
    assert take(rows, 1).tolist() == [TABLE[1].tolist()]  # within a batch nothing changes
    rows.refresh()
    assert take(rows, 1).tolist() == [(TABLE[1] + 100).tolist()]
    assert caplog.messages == ["table 't' of model 'm' has been replaced"]
    assert str(path) in mapping(path)


def test_a_bad_new_file_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.npy"
    replace(path, TABLE)
    rows = rows_of(path)
    replace(path, npy(TABLE)[:-1])
    for _ in range(2):
        rows.refresh()
    assert take(rows, 1).tolist() == [TABLE[1].tolist()]
    assert caplog.messages == [
        "table 't' of model 'm' is served as it was, the new one is refused: 't.npy' cannot be read: it has 287 bytes, "
        "shape [10,4] of float32 needs 288"
    ]
    path.unlink()
    rows.refresh()
    assert take(rows, 1).tolist() == [TABLE[1].tolist()]
    replace(path, TABLE + 1)
    rows.refresh()
    assert take(rows, 1).tolist() == [(TABLE[1] + 1).tolist()]


def rows_of_replaced_link(folder: Path) -> Any:
    """The rows of a link to the first of two directories, which leads to the second one since."""
    link, new = folder / "t", folder / "new"
    for number in (1, 2):
        (folder / f"v{number}").mkdir()
        np.save(folder / f"v{number}" / "vectors.npy", TABLE * number)
    link.symlink_to("v1")
    rows = rows_of(link)
    new.symlink_to("v2")
    new.rename(link)
    return rows


def test_a_file_that_cannot_be_opened_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of_replaced_link(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse(errno.EMFILE))
        for _ in range(2):
            rows.refresh()
            assert take(rows, 1).tolist() == [TABLE[1].tolist()]
    assert caplog.messages == [
        "table 't' of model 'm' is served as it was, the new one is refused: 't' cannot be read: "
        "[Errno 24] Too many open files"
    ]
    rows.refresh()
    assert take(rows, 1).tolist() == [(TABLE[1] * 2).tolist()]


def test_a_directory_that_cannot_be_read_is_refused_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of_replaced_link(tmp_path)
    monkeypatch.setattr(os, "listdir", refuse(errno.EIO))
    for _ in range(2):
        rows.refresh()
        assert take(rows, 1).tolist() == [TABLE[1].tolist()]
    assert len(caplog.messages) == 1
    assert "the new one is refused: 't' cannot be read: [Errno 5]" in caplog.text


def refuse(number: int) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        del args, options
        raise OSError(number, os.strerror(number))

    return call


def test_a_file_that_is_cut_short_in_place_is_not_touched(tmp_path: Path) -> None:
    path, table = tmp_path / "t.npy", np.zeros((4096, 4), np.float32)
    replace(path, table)
    rows = rows_of(path)
    os.truncate(path, 4096)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="was cut short while it is read; replace it by rename"):
            rows.refresh()
    replace(path, TABLE)
    rows.refresh()
    assert take(rows, 1).tolist() == [TABLE[1].tolist()]


def test_files_that_belong_together_are_replaced_by_one_rename(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        np.save(tmp_path / f"v{number}" / "vectors.npy", TABLE * number)
        np.save(tmp_path / f"v{number}" / "ids.npy", np.arange(10) + number)
    link, new = tmp_path / "t", tmp_path / "new"
    link.symlink_to("v1")
    rows = rows_of(link)
    assert take(rows, 10).tolist() == [TABLE[9].tolist()]
    new.symlink_to("v2")
    new.rename(link)
    rows.refresh()
    assert take(rows, 11).tolist() == [(TABLE[9] * 2).tolist()]


def test_what_is_replaced_is_unmapped(tmp_path: Path) -> None:
    path = tmp_path / "t.npy"
    replace(path, TABLE)
    rows = rows_of(path)
    for number in range(20):
        replace(path, TABLE + number)
        rows.refresh()
    assert Path("/proc/self/maps").read_text().count(str(path)) == 1
    assert [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()].count(str(path)) == 1
