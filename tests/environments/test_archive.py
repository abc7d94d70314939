"""archive.py: what comes out of a good archive; each bad one is refused by name, and nothing is touched outside."""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from shoal import metered_tar
from shoal.environments import archive as module
from shoal.environments.archive import unpack
from shoal.errors import InvalidArgumentError
from shoal.metered_tar import MeteredTar
from tests.repository.torchserve.archives import endless_map

Member = tuple[tarfile.TarInfo, bytes]


def file(name: str, content: bytes = b"content", mode: int = 0o644) -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), mode, 1_000_000_000
    return info, content


def special(name: str, kind: bytes, target: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info, b""


def link(name: str, target: str) -> Member:
    return special(name, tarfile.SYMTYPE, target)


def tar_of(members: Sequence[Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    directory = tmp_path / "deep" / "environment"
    directory.mkdir(parents=True)
    return directory


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "environment.tar.gz"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_an_environment_comes_out_as_it_went_in(tmp_path: Path, into: Path, compress: Callable[[bytes], bytes]) -> None:
    members = [
        special("bin", tarfile.DIRTYPE),
        link("bin/python", "python3.11"),
        file("bin/python3.11", b"\x7fELF", 0o4777),
        file("./lib/a/module.py", b"x = 1", 0o600),
        special("lib/same", tarfile.LNKTYPE, "lib/a/module.py"),
        link("lib64", "lib"),
        file("share/data", b""),
    ]
    unpack(write(tmp_path, compress(tar_of(members))), into)
    assert (into / "bin" / "python").readlink() == Path("python3.11")
    assert (into / "bin" / "python").read_bytes() == b"\x7fELF"
    assert stat.S_IMODE((into / "bin" / "python3.11").stat().st_mode) == 0o755
    module_file = into / "lib64" / "a" / "module.py"
    assert module_file.read_bytes() == b"x = 1"
    assert stat.S_IMODE(module_file.stat().st_mode) == 0o644
    assert module_file.stat().st_mtime == 1_000_000_000
    assert (into / "lib" / "same").samefile(module_file)
    assert (into / "share" / "data").read_bytes() == b""


BAD: dict[str, tuple[list[Member], str]] = {
    "upwards": ([file("lib/../../x")], "member 'lib/../../x' is outside of it"),
    "absolute": ([file("/tmp/x")], "member '/tmp/x' is outside of it"),
    "link upwards": ([link("lib/out", "../../x")], "link 'lib/out' leads out of it, to '../../x'"),
    "absolute link": ([link("out", "/etc/passwd")], "link 'out' leads out of it, to '/etc/passwd'"),
    # Each is inside as it is written; only where they lead together is outside.
    "links one after the other": (
        [file("p/q/x"), link("p/q/r", "../.."), link("s", "p/q/r/..")],
        "link 's' leads out of it, to 'p/q/r/..'",
    ),
    "a link to itself": ([link("a", "b"), link("b", "a"), link("c", "a/../../..")], "link 'c' leads out"),
    "file through a link": ([link("out", "."), file("out/x")], "link 'out' is in the place of another member"),
    "link in place of a file": ([file("x"), link("x", "y")], "link 'x' is in the place of another member"),
    "file twice": ([file("x"), file("x")], "member 'x' is in the place of another"),
    "link twice": ([link("x", "y"), link("x", "z")], "member 'x' comes twice"),
    "file as a directory": ([file("x"), file("x/y")], "member 'x/y' is in the place of another"),
    "hard link outside": ([special("x", tarfile.LNKTYPE, "../y")], "member '../y' is outside of it"),
    "hard link to a link": (
        [link("y", "z"), special("x", tarfile.LNKTYPE, "y")],
        "member 'x' is a link to 'y', no file before it",
    ),
    "fifo": ([special("x", tarfile.FIFOTYPE)], "member 'x' is neither file, directory nor link"),
    "device": ([special("x", tarfile.CHRTYPE)], "member 'x' is neither file, directory nor link"),
    "sparse": ([special("x", tarfile.GNUTYPE_SPARSE)], "cannot be unpacked"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_breaks_a_rule_is_refused_and_nothing_is_touched_outside(tmp_path: Path, into: Path, case: str) -> None:
    members, sentence = BAD[case]
    archive = write(tmp_path, gzip.compress(tar_of(members)))
    with pytest.raises(InvalidArgumentError) as caught:
        unpack(archive, into)
    assert str(caught.value).startswith(f"archive '{archive}' cannot be unpacked: ")
    assert sentence in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["deep", "environment.tar.gz"]
    assert os.listdir(tmp_path / "deep") == ["environment"]


def test_a_member_that_says_it_is_huge_is_refused_before_it_is_written(tmp_path: Path, into: Path) -> None:
    info = tarfile.TarInfo("x")
    info.size = 1 << 50
    with pytest.raises(InvalidArgumentError, match="too large: there is no room for 'x'"):
        unpack(write(tmp_path, info.tobuf(tarfile.GNU_FORMAT)), into)
    assert os.listdir(into) == []


@pytest.mark.parametrize("time", ["inf", "-inf", "nan", "1e300"])
def test_a_time_that_no_clock_has_is_refused(tmp_path: Path, into: Path, time: str) -> None:
    info, content = file("x")
    info.pax_headers = {"mtime": time}
    with pytest.raises(InvalidArgumentError, match="cannot be unpacked"):
        unpack(write(tmp_path, tar_of([(info, content)])), into)


def test_headers_that_go_on_in_headers_without_end_are_refused(tmp_path: Path, into: Path) -> None:
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 2
    header = long_name.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    with pytest.raises(InvalidArgumentError, match="recursion"):
        unpack(write(tmp_path, gzip.compress(3000 * header + tar_of([file("x")]))), into)
    unpack(write(tmp_path, gzip.compress(2 * header + tar_of([file("y")]))), into)
    assert os.listdir(into) == ["x"]


def test_a_header_of_less_than_nothing_is_refused(tmp_path: Path, into: Path) -> None:
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, -512
    with pytest.raises(InvalidArgumentError, match="cannot be unpacked"):
        unpack(write(tmp_path, long_name.tobuf(tarfile.GNU_FORMAT) + tar_of([file("x")])), into)
    assert os.listdir(into) == []
    with pytest.raises(tarfile.ReadError, match="its headers have more than"):  # and not all there is read at once
        MeteredTar(io.BytesIO(b"all there is")).read(-512)


def test_the_map_of_a_sparse_file_without_end_is_refused(tmp_path: Path, into: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="its headers have more than 4194304 bytes"):
        unpack(write(tmp_path, gzip.compress(endless_map("x"))), into)


def test_a_name_that_is_no_text_is_refused_in_text(tmp_path: Path, into: Path) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        unpack(write(tmp_path, tar_of([special("caf\udce9", tarfile.FIFOTYPE)])), into)
    assert "member 'caf\\udce9' is neither file, directory nor link" in str(caught.value).encode().decode()


def test_members_are_not_kept(tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    take = module._Unpacking._take

    def watched(unpacking: module._Unpacking, member: tarfile.TarInfo) -> None:
        kept.append(len(cast(Any, unpacking._tar).members))
        take(unpacking, member)

    monkeypatch.setattr(module._Unpacking, "_take", watched)
    unpack(write(tmp_path, tar_of([file(str(number)) for number in range(100)])), into)
    assert len(os.listdir(into)) == len(kept) == 100
    assert max(kept) == 1


def test_bounds_of_number_and_header(tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 2)
    with pytest.raises(InvalidArgumentError, match="more than 2 members"):
        unpack(write(tmp_path, tar_of([file(name) for name in "abc"])), into)
    monkeypatch.setattr(metered_tar, "MAX_HEADER_NBYTES", 1 << 16)
    with pytest.raises(InvalidArgumentError, match="its headers have more than 65536 bytes"):
        unpack(write(tmp_path, tar_of([file("x" * (1 << 17))])), into)


@pytest.mark.parametrize("cut", [10, 300, -300, -9, -1])
def test_a_truncated_archive_is_damaged(tmp_path: Path, into: Path, cut: int) -> None:
    whole = gzip.compress(tar_of([file("x", os.urandom(4096)), file("y", os.urandom(4096))]))
    with pytest.raises(InvalidArgumentError, match="cannot be unpacked"):
        unpack(write(tmp_path, whole[:cut]), into)


@pytest.mark.parametrize("place", [2, 5000, 10000, -4])
def test_a_changed_byte_is_noticed(tmp_path: Path, into: Path, place: int) -> None:
    data = bytearray(gzip.compress(tar_of([file("x", os.urandom(8192)), file("y", os.urandom(8192))])))
    data[place] ^= 0xFF
    with pytest.raises(InvalidArgumentError, match="cannot be unpacked"):
        unpack(write(tmp_path, bytes(data)), into)


@pytest.mark.parametrize("data", [b"", b"no archive at all", b"PK\x03\x04", b"BZh9nonsense"])
def test_what_is_no_archive_says_so(tmp_path: Path, into: Path, data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be unpacked"):
        unpack(write(tmp_path, data), into)


def test_a_damaged_header_in_the_middle_is_not_the_end(tmp_path: Path, into: Path) -> None:
    data = bytearray(tar_of([file("x"), file("y")]))
    data[1024] ^= 0xFF
    with pytest.raises(InvalidArgumentError, match="cannot be unpacked"):
        unpack(write(tmp_path, gzip.compress(bytes(data))), into)
