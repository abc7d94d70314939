"""docs/testing.md: its commands print what it shows, its tests pass, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.command_line import run_here

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
SHOWN = re.findall(r"```sh\n(shoal [^\n]*\n)```\n+```text\n((?:(?!```).)*)```", PAGE, re.DOTALL)


def test_the_page_shows_commands() -> None:
    assert len(SHOWN) == 2


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_prints_what_is_shown(command: str, output: str) -> None:
    done = run_here(*shlex.split(command)[1:], folder=ROOT)
    assert (done.stdout, done.returncode) == (output, 0), done.stderr


def test_the_tests_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "test_page.py"
    file.write_text("".join(blocks))
    plain = ["-p", "shoal.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", *plain, str(file)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{''.join(blocks).count('def test_')} passed" in done.stdout
