"""Archives for tests, made entry by entry, as torch-model-archiver makes them or as an attacker would."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HANDLER = "def handle(data, context):\n    return data and [b'ok' for _ in data]\n"


def manifest(
    name: str | None = "echo", version: str | None = "1.0", handler: str | None = "echo.py", **model: Any
) -> str:
    """The text of MAR-INF/MANIFEST.json; None leaves a member out."""
    named = {"modelName": name, "modelVersion": version, "handler": handler, **model}
    return json.dumps(
        {
            "createdOn": "01/01/2025 00:00:00",
            "runtime": "python",
            "archiverVersion": "0.12.0",
            "model": {key: value for key, value in named.items() if value is not None},
        }
    )


def mar(path: Path, files: Mapping[str, str] | None = None, **model: Any) -> Path:
    """A .mar with a manifest, the handler echo.py and further files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {"MAR-INF/MANIFEST.json": manifest(**model), "echo.py": HANDLER, **(files or {})}.items():
            archive.writestr(name, text)
    return path


def tgz(path: Path, files: Mapping[str, str] | None = None, top: str = "echo", **model: Any) -> Path:
    """The same as a .tar.gz, below a directory of the model's name."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"MAR-INF/MANIFEST.json": manifest(**model), "echo.py": HANDLER, **(files or {})}.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def folder(path: Path, files: Mapping[str, str] | None = None, **model: Any) -> Path:
    """The same as a folder."""
    for name, text in {"MAR-INF/MANIFEST.json": manifest(**model), "echo.py": HANDLER, **(files or {})}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def extended(name: str, kind: bytes, nbytes: int) -> bytes:
    """A tar, not compressed, with an extended header of so many zeros before its only file."""
    header = tarfile.TarInfo(name)
    header.type, header.size = kind, nbytes
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(nbytes) + tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT)


def endless_map(name: str) -> bytes:
    """A tar, not compressed, with a sparse file whose map goes on in each of thousands of blocks."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # the map goes on
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + (b"00000000001\0" * 42 + b"\1" + bytes(7)) * (8 << 11)
