"""docs/client.md: its examples print what it shows, with the server that it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.server import SAMPLES, only, serving

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_print_what_is_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    script = "\n".join(code for code, _ in EXAMPLES)
    with serving(SAMPLES, *only("simple", "mlp", "repeat"), f"--client-socket={path}"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "SHOAL_CLIENT_SOCKET": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stderr == ""
    assert done.stdout == "".join(output for _, output in EXAMPLES)


@pytest.mark.parametrize("name", ["client-socket", "client-count", "client-slab-mib"])
def test_the_flags_are_named(name: str) -> None:
    assert f"| `--{name}` |" in PAGE


def test_no_block_is_left_out() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") == 7
