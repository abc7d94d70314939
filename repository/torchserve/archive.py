"""Unpacking TorchServe's archives: `.mar`, which is a zip, and gzipped tar. The contents are untrusted.

    zip      every entry keeps its path
    tar.gz   the first component of every path, the model's name, is dropped

Every entry is a regular file or a directory within the target. An archive with a link, a device, a path that leads out,
two entries of one path, an encrypted entry, too many entries, or far more bytes than it has itself is refused as a
whole, a zip most often before a byte is written. Runs in the poller.
"""

import errno
import gzip
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

from shoal.metered_tar import MeteredTar

_CHUNK = 1 << 20
_MAX_PADDING_BYTES = 1 << 20
_ZIP_SIGNATURE = b"PK"
_ENCRYPTED = 0x1
#: Errors of the readers of zip, tar and gzip for bytes that are not of their format.
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, ValueError,
    NotImplementedError, struct.error, OverflowError,
)  # fmt: skip
#: All quotations in an error's sentence, from the first quotation mark to the last one of its kind.
_QUOTED = re.compile(r"""b?(['"]).*\1""", re.DOTALL)


class RefusedArchiveError(ValueError):
    """An archive is damaged, or has entries that are not allowed; the message is the reason, and the remedy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that an archive may unpack to (ours)."""

    entries: int = 20_000
    directory_bytes: int = 8 << 20  # of a zip's central directory, which is read as a whole
    ratio: int = 100  # unpacked bytes for each byte of the archive; models' weights have less than two
    always_bytes: int = 256 << 20  # unpacked bytes that are allowed whatever their ratio to the archive's
    name_bytes: int = 1024  # of an entry's path


LIMITS = Limits()


class Unpacked(NamedTuple):
    """The numbers of files and bytes that an archive has unpacked to."""

    num_files: int
    nbytes: int


class _Entry(NamedTuple):
    path: str
    is_directory: bool
    nbytes: int


def unpack(archive: BinaryIO, target: Path, limits: Limits = LIMITS) -> Unpacked:
    """Unpack an open archive into `target`, a directory that is empty; its format is told by its first bytes.

    Raises RefusedArchiveError, and OSError where the disk fails; what lies in `target` then is to be removed.
    """
    size = os.fstat(archive.fileno()).st_size
    is_zip = archive.read(len(_ZIP_SIGNATURE)) == _ZIP_SIGNATURE
    archive.seek(0)
    budget = _Budget(limits, max(limits.always_bytes, limits.ratio * size))
    try:
        if is_zip:
            _unpack_zip(archive, size, target, budget)
        else:
            _unpack_tar(archive, target, budget)
    except RefusedArchiveError:
        raise
    except _DAMAGED as error:
        said = _without_contents(error)
        raise RefusedArchiveError(f"it is damaged, or neither a zip nor a .tar.gz ({said}); make it again") from error
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):
            raise
        # bz2 raises OSErrors without an errno for damaged data; one with EINVAL means an offset before the archive.
        why = "an offset leads out of it" if error.errno else error
        raise RefusedArchiveError(f"it is damaged ({why}); make it again") from error
    except RuntimeError as error:  # zipfile raises it for an entry that needs a password
        raise RefusedArchiveError(f"it cannot be read ({error}); make it again") from error
    return Unpacked(budget.num_files, budget.nbytes)


def _without_contents(error: Exception) -> str:
    """The sentence of an error of the readers of zip, tar and gzip, without the bytes of the file that it quotes: the
    file may be any file of this machine that a client names, and no archive."""
    return error.reason if isinstance(error, UnicodeDecodeError) else _QUOTED.sub("…", str(error))


class _Budget:
    """How much of its limits an archive has used so far, and the paths of its entries."""

    def __init__(self, limits: Limits, most_bytes: int) -> None:
        self._limits = limits
        self._most_bytes = most_bytes
        # Changed by admit: path → whether it is a directory; the numbers of entries, files and unpacked bytes.
        self._paths: dict[str, bool] = {}
        self._num_entries = 0
        self.num_files = 0
        self.nbytes = 0

    def admit(self, entry: _Entry) -> tuple[str, ...]:
        """The components of an entry's path. Raises RefusedArchiveError where the entry is not to be unpacked."""
        self._num_entries += 1
        if self._num_entries > self._limits.entries:
            raise RefusedArchiveError(
                f"it has more than {self._limits.entries} entries; unpack it and register the folder"
            )
        parts = _components(entry.path, self._limits.name_bytes)
        for depth in range(1, len(parts)):
            if not self._paths.setdefault("/".join(parts[:depth]), True):
                raise RefusedArchiveError(f"entry {entry.path!r} lies in a file; make the archive again")
        path = "/".join(parts)
        known = self._paths.get(path)
        if known is not None and not (known and entry.is_directory):
            raise RefusedArchiveError(f"it has two entries {entry.path!r}; make the archive again")
        self._paths[path] = entry.is_directory
        self.nbytes += entry.nbytes
        if self.nbytes > self._most_bytes:
            raise RefusedArchiveError(
                f"it unpacks to more than {self._most_bytes} bytes, {self._limits.ratio} times its own size, as "
                "no model does; unpack it and register the folder"
            )
        self.num_files += not entry.is_directory
        return parts


def _components(path: str, most_bytes: int) -> tuple[str, ...]:
    """The components of a path within an archive; a trailing slash is left out."""
    try:
        nbytes = len(path.encode())
    except UnicodeEncodeError:
        raise RefusedArchiveError(f"the name of entry {path!r} is not UTF-8; rename the file") from None
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if path.startswith("/") or ".." in parts or "\\" in path:
        raise RefusedArchiveError(f"entry {path!r} leads out of the archive; make it of relative paths without '..'")
    if not parts or not path.isprintable() or nbytes > most_bytes or max(len(each.encode()) for each in parts) > 255:
        raise RefusedArchiveError(f"the name of entry {path[:80]!r} is no name of a file; rename it")
    return parts


# --- zip ---


def _unpack_zip(archive: BinaryIO, size: int, target: Path, budget: _Budget) -> None:
    limit = budget._limits.directory_bytes
    if _central_directory_bytes(archive, size) > limit:
        raise RefusedArchiveError("its table of entries is too large; unpack it and register the folder")
    archive.seek(0)
    with zipfile.ZipFile(archive) as opened:
        # All entries are judged before one is written: their sizes are known.
        admitted = [(info, budget.admit(_zip_entry(info))) for info in opened.infolist()]
        for info, parts in admitted:
            if info.is_dir():
                _make_directory(target, parts)
                continue
            with opened.open(info) as source:
                _write(source, target, parts, info.file_size)


def _zip_entry(info: zipfile.ZipInfo) -> _Entry:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise RefusedArchiveError(
            f"entry {info.orig_filename!r} is a link or a device; pack the file that it stands for"
        )
    if info.flag_bits & _ENCRYPTED:
        raise RefusedArchiveError(f"entry {info.orig_filename!r} is encrypted; make the archive without a password")
    # ZipInfo.is_dir() fails for an entry without a name before Python 3.12; the name may also begin with a NUL byte.
    return _Entry(info.orig_filename, info.filename.endswith("/"), info.file_size)


def _central_directory_bytes(archive: BinaryIO, size: int) -> int:
    """The size of a zip's table of entries, by its end record; APPNOTE.TXT 4.3.14 and 4.3.16. 0 where there is none."""
    tail_bytes = min(size, 22 + 0xFFFF + 20)
    archive.seek(size - tail_bytes)
    tail = archive.read(tail_bytes)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + 22:
        return 0
    (nbytes,) = struct.unpack_from("<L", tail, end + 12)
    locator = end - 20
    if locator < 0 or tail[locator : locator + 4] != b"PK\x06\x07":
        return int(nbytes)
    (offset,) = struct.unpack_from("<Q", tail, locator + 8)
    archive.seek(min(offset, size))
    record = archive.read(56)
    if len(record) < 56 or record[:4] != b"PK\x06\x06":
        raise RefusedArchiveError("it is damaged (its end record names none for large archives); make it again")
    return max(int(nbytes) if nbytes != 0xFFFFFFFF else 0, int(struct.unpack_from("<Q", record, 40)[0]))


# --- tar ---


def _unpack_tar(archive: BinaryIO, target: Path, budget: _Budget) -> None:
    with gzip.open(archive) as stream:
        metered = MeteredTar(stream)
        with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|") as opened:
            for member, path in _members(opened):
                nbytes = 0 if member.isdir() else member.size
                parts = budget.admit(_Entry(path, member.isdir(), nbytes))
                metered.admit(nbytes)
                if member.isdir():
                    _make_directory(target, parts)
                    continue
                source = opened.extractfile(member)
                assert source is not None
                _write(source, target, parts, nbytes)
        # Reads tar's padding up to the end of the gzip data, where gzip compares the checksum of the whole archive.
        if len(stream.read(_MAX_PADDING_BYTES)) == _MAX_PADDING_BYTES:
            raise RefusedArchiveError("it has more behind its last entry; make it again")


def _members(opened: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """The entries, with their paths without the first component."""
    for member in opened:
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise RefusedArchiveError(f"entry {member.name!r} is a link or a device; pack the file that it stands for")
        if member.name.startswith("/"):
            raise RefusedArchiveError(f"entry {member.name!r} leads out of the archive; make it of relative paths")
        top, _, path = member.name.removeprefix("./").partition("/")
        if top in ("..", ""):
            raise RefusedArchiveError(f"entry {member.name!r} leads out of the archive; make it of relative paths")
        if path:
            yield member, path
        elif not member.isdir() and top != ".":
            raise RefusedArchiveError(
                f"file {member.name!r} lies beside the model's directory; make the archive with a directory at its top"
            )


# --- writing ---


def _make_directory(target: Path, parts: tuple[str, ...]) -> None:
    target.joinpath(*parts).mkdir(parents=True, exist_ok=True)


def _write(source: IO[bytes], target: Path, parts: tuple[str, ...], nbytes: int) -> None:
    """Write a file of exactly `nbytes`, which have been admitted."""
    _make_directory(target, parts[:-1])
    path = target.joinpath(*parts)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "wb") as file:
        left = nbytes
        while chunk := source.read(min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise RefusedArchiveError(f"entry {'/'.join(parts)!r} is longer than it says; make the archive again")
            file.write(chunk)
    if left:
        raise RefusedArchiveError(f"entry {'/'.join(parts)!r} is shorter than it says; make the archive again")
