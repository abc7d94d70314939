"""The rows of the unit's exposure, as systemd itself scores it."""

import re
import shutil
import subprocess

from shoal.cli import main
from tests.end_to_end.server import SAMPLES
from tests.reliability.row import Course

BARS = {"cpu": (1.1, ()), "gpu": (1.3, ("--gpu",))}


def run(course: Course) -> None:
    """Write the units and have them scored."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        raise RuntimeError("systemd-analyze is not installed (Debian's package systemd)")
    for key, (bar, flags) in BARS.items():
        unit = course.directory / key / "shoal.service"
        unit.parent.mkdir()
        given = ["--model-repository", str(SAMPLES), "--user", "daemon", "--output", str(unit), "--clients=localhost"]
        assert main(["install-systemd", *given, *flags]) == 0
        command = [analyze, "security", "--offline=true", "--no-pager", str(unit)]
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20).stdout
        print(told)
        (score,) = re.findall(r"Overall exposure level for shoal\.service: ([\d.]+)", told)
        course.found(key, score, is_met=float(score) <= bar)
