"""Archives unpacked: ordinary ones whole, and every attack refused as a whole, with nothing outside the target."""

import gzip
import io
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.repository.torchserve.archive import LIMITS, Limits, RefusedArchiveError, Unpacked, unpack
from tests.repository.torchserve.archives import endless_map, extended, mar, tgz

SMALL = Limits(entries=50, directory_bytes=8192, ratio=10, always_bytes=100_000)


def unpack_file(path: Path, target: Path, limits: Limits = LIMITS) -> Unpacked:
    target.mkdir()
    with open(path, "rb") as archive:
        return unpack(archive, target, limits)


def zipped(path: Path, *entries: tuple[zipfile.ZipInfo | str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def info(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize("make", [mar, tgz])
def test_files_keep_their_paths_and_contents(make: Callable[..., Path], tmp_path: Path) -> None:
    archive = make(tmp_path / "a", {"deep/er/weights.bin": "w" * 5000})
    assert unpack_file(archive, tmp_path / "out").num_files == 3
    assert (tmp_path / "out" / "deep" / "er" / "weights.bin").read_text() == "w" * 5000
    assert (tmp_path / "out" / "MAR-INF" / "MANIFEST.json").is_file()


def _patched(make: Callable[[Path], None], change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make_and_change(path: Path) -> None:
        make(path)
        path.write_bytes(change(path.read_bytes()))

    return make_and_change


def _of(raw: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(raw)

    return make


def _plain(path: Path) -> None:
    zipped(path, ("a.py", b"x" * 3000), ("b.py", b"y" * 3000))


def _flag_as_encrypted(raw: bytes) -> bytes:
    """Set bit 0 of the general purpose flag in every central record (offset 8 of PK\\1\\2)."""
    at = raw.index(b"PK\x01\x02")
    return raw[: at + 8] + bytes([raw[at + 8] | 1]) + raw[at + 9 :]


def _claim_bzip2(raw: bytes) -> bytes:
    """Set the method of every entry to 12 (APPNOTE.TXT 4.4.5)."""
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        parts = raw.split(signature)
        parts[1:] = [part[: offset - 4] + b"\x0c\x00" + part[offset - 2 :] for part in parts[1:]]
        raw = signature.join(parts)
    return raw


def _rename_to_no_utf8(raw: bytes) -> bytes:
    """Claim UTF-8 (bit 11) for a name that is none."""
    at = raw.index(b"PK\x01\x02")
    (flags,) = struct.unpack_from("<H", raw, at + 8)
    raw = raw[: at + 8] + struct.pack("<H", flags | 0x800) + raw[at + 10 :]
    return raw.replace(b"a.py", b"\xff\xfe\xfd\xfc")


def _grow(raw: bytes) -> bytes:
    """Let the first entry say that it has one byte, in both of its records; its data have 3000."""
    central = raw.index(b"PK\x01\x02")
    raw = raw[:22] + struct.pack("<L", 1) + raw[26:]
    return raw[: central + 24] + struct.pack("<L", 1) + raw[central + 28 :]


def _zip64_elsewhere(raw: bytes) -> bytes:
    """A locator of a record for large archives, which points at the archive's beginning."""
    at = raw.index(b"PK\x05\x06")
    return raw[:at] + b"PK\x06\x07" + struct.pack("<LQL", 0, 0, 1) + raw[at:]


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "up": (lambda path: zipped(path, ("../evil.py", b"x")), "leads out"),
    "up inside": (lambda path: zipped(path, ("a/../../evil.py", b"x")), "leads out"),
    "absolute": (lambda path: zipped(path, ("/tmp/evil.py", b"x")), "leads out"),
    "backslash": (lambda path: zipped(path, ("..\\evil.py", b"x")), "leads out"),
    "only a dot": (lambda path: zipped(path, (".", b"x")), "is no name of a file"),
    "control character": (lambda path: zipped(path, ("a\nb.py", b"x")), "is no name of a file"),
    "no bzip2": (_patched(_plain, _claim_bzip2), r"it is damaged \(Invalid data stream\)"),
    "no name before a NUL byte": (_patched(_plain, lambda raw: raw.replace(b"a.py", b"\0.py")), "is no name of a file"),
    "long name": (lambda path: zipped(path, ("a" * 300, b"x")), "is no name of a file"),
    "long path": (lambda path: zipped(path, ("a/" * 600 + "b", b"x")), "is no name of a file"),
    "link": (lambda path: zipped(path, (info("evil", 0o120777), b"/etc/passwd")), "is a link or a device"),
    "device": (lambda path: zipped(path, (info("evil", 0o020666), b"")), "is a link or a device"),
    "through a file": (lambda path: zipped(path, ("a", b"x"), ("a/b", b"x")), "lies in a file"),
    "file over a directory": (lambda path: zipped(path, ("a/b", b"x"), ("a", b"x")), "two entries"),
    "one name spelt twice": (lambda path: zipped(path, ("a.py", b"x"), ("./a.py", b"y")), "two entries"),
    "bomb": (lambda path: zipped(path, ("zeros", bytes(2_000_000))), "unpacks to more than 100000 bytes"),
    "many small": (lambda path: zipped(path, *[(f"{each}", b"") for each in range(60)]), "more than 50 entries"),
    "large table": (lambda path: zipped(path, *[(f"{each}", b"") for each in range(500)]), "table of entries is too"),
    "encrypted": (_patched(_plain, _flag_as_encrypted), "is encrypted"),
    "no UTF-8": (_patched(_plain, _rename_to_no_utf8), "damaged"),
    "truncated": (_patched(_plain, lambda raw: raw[:-40]), "damaged"),
    "broken byte": (_patched(_plain, lambda raw: raw[:40] + b"\xff\xff" + raw[42:]), "damaged"),
    "longer than it says": (_patched(_plain, _grow), "damaged"),
    "no table for large archives": (_patched(_plain, _zip64_elsewhere), "damaged"),
    "empty": (_of(b""), "damaged"),
    "text": (_of(b"PKthis is no archive"), "damaged"),
    "gzip of text": (_of(gzip.compress(b"this is no tar" * 100)), "damaged"),
    "tar up": (lambda path: tarred(path, (member("m/../../evil"), b"x")), "leads out"),
    "tar top up": (lambda path: tarred(path, (member("../evil"), b"x")), "leads out"),
    "tar absolute": (lambda path: tarred(path, (member("/m/evil"), b"x")), "leads out"),
    "tar link": (lambda path: tarred(path, (member("m/a", tarfile.SYMTYPE, "/etc/passwd"), b"")), "is a link"),
    "tar hard link": (lambda path: tarred(path, (member("m/a", tarfile.LNKTYPE, "/etc/passwd"), b"")), "is a link"),
    "tar device": (lambda path: tarred(path, (member("m/a", tarfile.CHRTYPE), b"")), "is a link or a device"),
    "tar fifo": (lambda path: tarred(path, (member("m/a", tarfile.FIFOTYPE), b"")), "is a link or a device"),
    "tar twice": (lambda path: tarred(path, (member("m/a"), b"x"), (member("n/a"), b"y")), "two entries"),
    "tar bomb": (lambda path: tarred(path, (member("m/zeros"), bytes(2_000_000))), "unpacks to more than 100000"),
    "tar of many": (
        lambda path: tarred(path, *[(member(f"m/{each}"), b"") for each in range(60)]), "more than 50 entries"
    ),
    "tar with a header of zeros": (
        lambda path: path.write_bytes(gzip.compress(extended("m/a", tarfile.XHDTYPE, 8 << 20))),
        "its headers have more than 4194304 bytes",
    ),
    "tar with a long name of zeros": (
        lambda path: path.write_bytes(gzip.compress(extended("m/a", tarfile.GNUTYPE_LONGNAME, 8 << 20))),
        "its headers have more than 4194304 bytes",
    ),
    "tar with a map without end": (
        lambda path: path.write_bytes(gzip.compress(endless_map("m/a"))), "its headers have more than 4194304 bytes"
    ),
    "tar beside": (lambda path: tarred(path, (member("handler.py"), b"x")), "lies beside the model's directory"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(name: str, tmp_path: Path) -> None:
    make, reason = ATTACKS[name]
    make(tmp_path / "a")
    with pytest.raises(RefusedArchiveError, match=reason):
        unpack_file(tmp_path / "a", tmp_path / "out", SMALL)
    assert {each.name for each in tmp_path.iterdir()} == {"a", "out"}
    assert not [each for each in (tmp_path / "out").rglob("*") if each.is_symlink()]
    assert sum(each.stat().st_size for each in (tmp_path / "out").rglob("*")) <= SMALL.always_bytes + 2**20


def _rename_in_table(raw: bytes) -> bytes:
    """An archive whose table of entries has another name for an entry than the entry's own head."""
    at = raw.index(b"PK\x01\x02")
    return raw[:at] + raw[at:].replace(b"a.py", b"c.py")


@pytest.mark.parametrize(
    "make",
    [
        _of(b"secret"),
        _of(gzip.compress(b"secret" * 200)),
        _of(gzip.compress(b"name".ljust(100, b"\0") + b"secret".ljust(412, b"\0"))),
        _patched(_plain, _rename_to_no_utf8),
        _patched(_plain, _rename_in_table),
    ],
)
def test_a_refusal_quotes_no_file_that_is_no_archive(make: Callable[[Path], object], tmp_path: Path) -> None:
    """A client of the management API may name any file that the server can read, and must not learn its contents."""
    make(tmp_path / "a")
    with pytest.raises(RefusedArchiveError, match="it is damaged") as refused:
        unpack_file(tmp_path / "a", tmp_path / "target")
    assert not re.search(r"b'|secret|0x|\.py", str(refused.value)), refused.value


@pytest.mark.parametrize("length", range(0, 900, 13))
@pytest.mark.parametrize("make", [mar, tgz])
def test_an_archive_cut_anywhere_is_refused(make: Callable[..., Path], length: int, tmp_path: Path) -> None:
    whole = make(tmp_path / "whole").read_bytes()
    if length >= len(whole):
        return
    (tmp_path / "a").write_bytes(whole[:length])
    with pytest.raises(RefusedArchiveError):
        unpack_file(tmp_path / "a", tmp_path / "out")


def test_a_hundred_thousand_entries_are_refused_by_the_size_of_their_table(tmp_path: Path) -> None:
    record = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 60) + bytes(16) + b"n" * 60
    table = record * 100_000
    end = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, 0xFFFF, 0xFFFF, len(table), 0, 0)
    (tmp_path / "a").write_bytes(table + end)
    with pytest.raises(RefusedArchiveError, match="table of entries is too large"):
        unpack_file(tmp_path / "a", tmp_path / "out")


def test_an_offset_before_the_archive_is_damage(tmp_path: Path) -> None:
    raw = mar(tmp_path / "whole").read_bytes()
    end = raw.rindex(b"PK\x05\x06")
    (offset,) = struct.unpack_from("<L", raw, end + 16)
    # The table of entries begins later than it does, so that all offsets lie before the archive.
    (tmp_path / "a").write_bytes(raw[: end + 16] + struct.pack("<L", offset + 500) + raw[end + 20 :])
    with pytest.raises(RefusedArchiveError, match="damaged"):
        unpack_file(tmp_path / "a", tmp_path / "out")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_an_archive_with_other_bytes_is_unpacked_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    here = tmp_path_factory.mktemp("mutated")
    make = data.draw(st.sampled_from([mar, tgz]))
    raw = bytearray(make(here / "a", {"d/x.bin": "w" * 3000}).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        start, length = data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, 20))
        raw[start : start + length] = data.draw(st.binary(max_size=8))
    (here / "a").write_bytes(raw)
    try:
        unpack_file(here / "a", here / "out", SMALL)
    except RefusedArchiveError as refused:
        assert str(refused)
    assert {each.name for each in here.iterdir()} == {"a", "out"}
