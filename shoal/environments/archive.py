"""Unpacking an environment's archive, as conda-pack makes it: whatever it contains, no file outside is changed.

Rules: a member's name is a plain path below the directory; a member is a file, a directory or a link; each name but a
directory's comes once. A symbolic link is relative and leads to a place inside. Symbolic links are made after all
files, so no file can be written through one. Owners, setuid bits and other users' write permission are left out. An
archive that breaks a rule is refused with the member's name, and the caller removes what has been written.
"""

import bz2
import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from shoal.errors import InvalidArgumentError
from shoal.metered_tar import MeteredTar

#: Bounds of an archive (ours): the largest environments have 10 GB in 300,000 files.
MAX_MEMBERS, MAX_NBYTES = 1_000_000, 64 << 30
_CHUNK_NBYTES = 1 << 20

#: Errors caused by bad data: a time that no clock has is an OverflowError, headers nested without end a RecursionError.
_BAD = (
    tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, OverflowError, RecursionError, ValueError,
)  # fmt: skip

_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar, compressed or not, into an empty directory. Raises InvalidArgumentError, or OSError of the disk."""
    with archive.open("rb") as file, _explained(archive):
        start = file.read(6)
        file.seek(0)
        opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
        plain = opener(file) if opener else file
        stream = MeteredTar(plain)
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as tar:
            _Unpacking(tar, stream, into).run()
        # Read on to the real end: tarfile takes a damaged header for the end of the archive, and the checksum of
        # compressed data is only verified when all have been read.
        while rest := plain.read(_CHUNK_NBYTES):
            if rest.strip(b"\0"):
                raise tarfile.ReadError("there is something behind its end")


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """Turn the errors of tarfile and of the decompressors into InvalidArgumentError with a sentence."""
    try:
        yield
    except _BAD as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's; errors of gzip and bz2 have no errno
            raise
        # A member's name need not be Unicode, a sentence must.
        words = str(error).encode(errors="backslashreplace").decode()
        raise InvalidArgumentError(f"archive '{archive}' cannot be unpacked: {words}") from error


class _Unpacking:
    """The unpacking of one archive. A member that breaks a rule raises tarfile.ReadError."""

    def __init__(self, tar: tarfile.TarFile, stream: MeteredTar, root: Path) -> None:
        self._tar = tar
        self._stream = stream
        self._root = root.resolve()
        # The bytes that further members may take, and the links to make when all files are written: path → target.
        self._free_nbytes = min(MAX_NBYTES, shutil.disk_usage(root).free)
        self._links: dict[Path, str] = {}

    def run(self) -> None:
        """Unpack all members. Raises tarfile.ReadError."""
        for number, member in enumerate(self._tar):
            if number >= MAX_MEMBERS:
                raise tarfile.ReadError(f"it has more than {MAX_MEMBERS} members")
            try:
                self._take(member)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise tarfile.ReadError(f"member '{member.name}' is in the place of another") from error
            cast(Any, self._tar).members.clear()  # tarfile keeps all members that it has read, half a kilobyte each
        for path, target in self._links.items():
            try:
                path.symlink_to(target)
            except FileExistsError as error:
                raise tarfile.ReadError(f"link '{self._name(path)}' is in the place of another member") from error
        # Checked when all links exist: one link may lead through others.
        for path, target in self._links.items():
            if not Path(os.path.realpath(path)).is_relative_to(self._root):
                raise tarfile.ReadError(f"link '{self._name(path)}' leads out of it, to '{target}'")

    def _take(self, member: tarfile.TarInfo) -> None:
        self._stream.admit(0)
        path = self._place(member.name)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            if not member.linkname or PurePosixPath(member.linkname).is_absolute():
                raise tarfile.ReadError(f"link '{member.name}' leads out of it, to '{member.linkname}'")
            if path in self._links:
                raise tarfile.ReadError(f"member '{member.name}' comes twice")
            self._links[path] = member.linkname
        elif member.islnk():
            target = self._place(member.linkname)
            if not target.is_file():
                raise tarfile.ReadError(f"member '{member.name}' is a link to '{member.linkname}', no file before it")
            path.hardlink_to(target)
        elif member.isfile() and not member.issparse():
            self._write(member, path)
        else:
            raise tarfile.ReadError(f"member '{member.name}' is neither file, directory nor link")

    def _place(self, name: str) -> Path:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise tarfile.ReadError(f"member '{name}' is outside of it")
        return self._root / path

    def _write(self, member: tarfile.TarInfo, path: Path) -> None:
        if member.size > self._free_nbytes:
            raise tarfile.ReadError(f"it is too large: there is no room for '{member.name}' ({member.size} bytes)")
        self._free_nbytes -= member.size
        self._stream.admit(member.size)
        content = self._tar.extractfile(member)
        assert content is not None
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file, _CHUNK_NBYTES)
            os.fchmod(file.fileno(), 0o644 | (member.mode & 0o111))
        # With other times compiled files would count as outdated, and all would be compiled again.
        os.utime(path, (member.mtime, member.mtime))

    def _name(self, path: Path) -> Path:
        return path.relative_to(self._root)
