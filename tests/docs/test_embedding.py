"""docs/embedding.md: its example makes the tables, is served and prints what the page shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.command_line import run_here

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "embedding.md").read_text()


def test_the_example_prints_what_is_shown(tmp_path: Path) -> None:
    [script], [config] = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("python", "pbtxt"))
    [(command, shown)] = re.findall(r"```sh\n(shoal [^\n]*\n)```\n+```text\n(.*?)```", PAGE, re.DOTALL)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    (tmp_path / "models" / "shop" / "config.pbtxt").write_text(config)
    done = run_here(*shlex.split(command)[1:], folder=tmp_path)
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr
