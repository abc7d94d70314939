"""The wheels that Shoal needs and a machine with PyTorch for GPUs lacks, collected where there is a package registry.

A machine with a GPU often has no access to a registry, and little can be copied to it: these wheels are 3 MB. Run
through scripts/gpu-check --pack.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Dependencies of Shoal that an image with PyTorch most often has. protobuf is not among them: its major version is
#: often not that of Shoal's generated messages.
PRESENT = frozenset({"msgpack", "numpy", "pyyaml"})
#: Packages that Flask needs and that such an image may lack.
BELOW = ("blinker>=1.9", "click>=8.1.3", "itsdangerous>=2.2", "werkzeug>=3.1")
#: pip takes these literally: a wheel for manylinux_2_17 is not found by manylinux_2_28.
PLATFORMS = ("_2_34", "_2_28", "_2_27", "_2_24", "_2_17", "_2_12", "_2_5", "2014", "2010", "1")


def main(argv: Sequence[str]) -> int:
    """Fill the folder; returns pip's exit code."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check --pack", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the wheels go; wheels of an earlier run there are deleted")
    parser.add_argument("--python", default="3.12", help="the Python of the machine with the GPU (default: 3.12)")
    given = parser.parse_args(argv)
    given.directory.mkdir(parents=True, exist_ok=True)
    for old in given.directory.glob("*.whl"):
        old.unlink()
    code = subprocess.run(command(wanted(), given.directory, given.python), check=False).returncode
    wheels = list(given.directory.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.1f} MB, in {given.directory}")
    return code


def wanted() -> list[str]:
    """The requirements that are to be packed, as pip reads them."""
    return [*(each for each in dependencies() if name_of(each) not in PRESENT), *BELOW]


def dependencies() -> list[str]:
    """The requirements of the package itself, from pyproject.toml, by hand: Python 3.10 has no tomllib."""
    text = (ROOT / "pyproject.toml").read_text()
    block = text.partition("\ndependencies = [\n")[2].partition("\n]\n")[0]
    return re.findall(r'^ +"([^"]+)"', block, re.MULTILINE)


def name_of(requirement: str) -> str:
    """The distribution that a requirement names."""
    return re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0].lower()


def command(requirements: Sequence[str], directory: Path, python: str) -> list[str]:
    """pip's command: wheels for that Python on x86-64, and nothing that they in turn require."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    platforms = [f"--platform=manylinux{each}_x86_64" for each in PLATFORMS]
    chosen = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    return [*pip, *chosen, f"--dest={directory}", *requirements]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
