"""Environments for tests: virtual ones of the Python that runs the tests, without pip, in a tenth of a second."""

import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np


def make_venv(directory: Path, *, has_numpy: bool = True, copies: bool = False) -> Path:
    """A virtual environment with nothing but numpy, which is the tests' own; `copies` needs no link out of it."""
    venv.EnvBuilder(symlinks=not copies, with_pip=False).create(directory)
    if has_numpy:
        numpy_only = directory.parent / f"numpy-of-{directory.name}"
        numpy_only.mkdir()
        (numpy_only / "numpy").symlink_to(Path(np.__file__).parent)
        (site_packages(directory) / "numpy.pth").write_text(f"{numpy_only}\n")
    return directory


def site_packages(directory: Path) -> Path:
    return directory / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def pack(directory: Path, archive: Path) -> Path:
    """What conda-pack does with an environment, compressed as little as can be."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for entry in sorted(directory.iterdir()):
            tar.add(entry, entry.name)
    return archive


def write_wheel(directory: Path, name: str, version: str, code: str) -> Path:
    """A package of one module."""
    return _write_wheel(directory, name, version, f"{name}.py", code)


def _write_wheel(directory: Path, name: str, version: str, path: str, content: str) -> Path:
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(path, content)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"{path},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return wheel


def numpy_wheel(directory: Path) -> Path:
    """A wheel that leads to the numpy installed here: pip takes it for that version, and has no file to copy.

    With the files themselves an installation took 6.1 billion instructions instead of 2.5, and 50 MB.
    """
    numpy_only = directory / "numpy-only"
    numpy_only.mkdir()
    (numpy_only / "numpy").symlink_to(Path(np.__file__).parent)
    return _write_wheel(directory, "numpy", np.__version__, "numpy.pth", f"{numpy_only}\n")
