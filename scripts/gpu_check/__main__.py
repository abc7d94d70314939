"""A check on a GPU, row by row: each is a process of its own with a time limit, and is printed as it ends.

Prints a table for docs/gpu.md. A row that fails, hangs or lacks something stops no other. With --on-cpu the
driver and its tools are fakes (scripts/gpu_check/fake) and frameworks compute on the CPU, which tries the whole check
without a GPU.
"""

import _ctypes
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts import row_process
from scripts.gpu_check.finding import FAKES, Finding, Verdict
from scripts.gpu_check.rows import ROWS, Row

NO_GPU = 2
ROOT = Path(__file__).parents[2]
#: The beginning of the last line that a row's process prints.
RESULT = "gpu-check result: "
#: NVIDIA's management library, in whose place any library stands where the GPU is a fake.
LIBRARY = "libnvidia-ml.so.1"
#: Lines of a failed row's output that are printed at once, on stderr.
SHOWN = 40


def main(argv: Sequence[str]) -> int:
    """Run the rows; returns 0 where none is wrong, 1 where one is, 2 where there is no GPU."""
    given = parser().parse_args(argv)
    if given.row:
        from scripts.gpu_check import run_row

        return run_row.main(given.row, on_cpu=given.on_cpu, seconds=given.seconds)
    names = {row.name for row in ROWS}
    if unknown := set(given.only) - names:
        print(
            f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}",
            file=sys.stderr,
        )
        return NO_GPU
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        variables = environment(Path(directory), given.wheels, on_cpu=given.on_cpu)
        if not is_gpu_there(variables):
            print("There is no GPU here that NVIDIA's driver tells of. Nothing has been checked.", file=sys.stderr)
            return NO_GPU
        chosen = [row for row in ROWS if row.name in (given.only or names)]
        logs = Path(given.logs or directory)
        logs.mkdir(parents=True, exist_ok=True)
        return check(chosen, variables, logs, given)


def parser() -> argparse.ArgumentParser:
    """The command's flags, and those of a row's process."""
    found = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    found.add_argument("--wheels", type=Path, metavar="DIR", help="wheels from --pack, for what this Python lacks")
    found.add_argument("--on-cpu", action="store_true", help="try this check where there is no GPU")
    found.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: 2)")
    found.add_argument(
        "--minutes", type=float, default=8.0, help="of the whole run (default: 8); later rows do not run"
    )
    found.add_argument("--only", action="append", default=[], metavar="ROW", help="run this row; may be repeated")
    found.add_argument("--logs", metavar="DIR", help="keep the output of each row here")
    found.add_argument("--row", help=argparse.SUPPRESS)
    return found


def environment(directory: Path, wheels: Path | None, *, on_cpu: bool) -> dict[str, str]:
    """The variables of all rows' processes; the wheels are unpacked where these processes find them."""
    paths = [str(FAKES)] if on_cpu else []
    if wheels is not None:
        site = directory / "site"
        install(sorted(wheels.glob("*.whl")), site)
        paths.append(str(site))
    paths += [str(ROOT), str(ROOT / "workers" / "pb_utils"), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    if on_cpu:
        variables["PATH"] = os.pathsep.join((str(FAKES), os.environ.get("PATH", "")))
        libraries = directory / "libraries"  # a front end looks for the driver's library before it imports its bindings
        libraries.mkdir()
        (libraries / LIBRARY).symlink_to(_ctypes.__file__)
        variables["LD_LIBRARY_PATH"] = os.pathsep.join((str(libraries), os.environ.get("LD_LIBRARY_PATH", "")))
        variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables


def install(wheels: Sequence[Path], site: Path) -> None:
    """Unpack wheels into a folder. A wheel that does not suit this Python is left out, and named; the others are
    unpacked."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    chosen = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade", f"--target={site}"]
    if subprocess.run([*pip, *chosen, *map(str, wheels)], check=False).returncode:
        for wheel in wheels:
            if subprocess.run([*pip, *chosen, str(wheel)], check=False).returncode:
                print(f"not installed: {wheel.name}", file=sys.stderr)


def is_gpu_there(variables: Mapping[str, str]) -> bool:
    """Whether the driver lists a GPU; also True where Shoal cannot be imported, which the first row reports."""
    program = (
        "import os\nfrom shoal.supervisor.machine import list_gpus\nraise SystemExit(0 if list_gpus(os.environ) else 3)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=variables, timeout=120, check=False)
    return done.returncode != 3


def check(rows: Sequence[Row], variables: Mapping[str, str], logs: Path, given: argparse.Namespace) -> int:
    """Run the rows one after the other, as long as there is time; returns the exit code."""
    end_s = time.monotonic() + given.minutes * 60
    wrong = False
    print("| row | verdict | found | seconds |\n| --- | --- | --- | --- |", flush=True)
    for row in rows:
        start_s = time.monotonic()
        limit_s = min(row.limit_s, end_s - start_s)
        if limit_s < 5:
            finding = Finding(Verdict.NOT_RUN, "no time was left")
        else:
            finding = run(row, variables, logs / f"{row.name}.log", limit_s, given)
        wrong = wrong or finding.verdict is Verdict.WRONG
        found = " ".join(finding.found.split()).replace("|", "\\|")
        print(f"| {row.title} | {finding.verdict.value} | {found} | {time.monotonic() - start_s:.0f} |", flush=True)
    return int(wrong)


def run(row: Row, variables: Mapping[str, str], log: Path, limit_s: float, given: argparse.Namespace) -> Finding:
    """A row's finding, from a process in a session of its own, of which nothing is left afterwards."""
    command = [sys.executable, "-m", "scripts.gpu_check", "--row", row.name, "--seconds", str(given.seconds)]
    command += ["--on-cpu"] * given.on_cpu
    code, lines = row_process.run(command, log, limit_s, variables)
    result = next((line for line in reversed(lines) if line.startswith(RESULT)), None)
    if result is not None:
        verdict, found = json.loads(result.removeprefix(RESULT))
        finding = Finding(Verdict(verdict), found)
    elif code is None and limit_s < row.limit_s:
        finding = Finding(Verdict.NOT_RUN, f"no time was left: it was not done after {limit_s:.0f} s")
    else:
        how = f"it was not done after {limit_s:.0f} s" if code is None else f"its process ended with {code}"
        finding = Finding(Verdict.WRONG, f"{how}: {lines[-1] if lines else 'nothing was printed'}")
    if finding.verdict is Verdict.WRONG:
        print(f"--- the last lines of row {row.name}:", *lines[-SHOWN:], "---", sep="\n", file=sys.stderr, flush=True)
    return finding


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
