"""What the README, docs/start.md and docs/systemd.md show is what happens: commands are run, their output compared."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.server import Server

ROOT = Path(__file__).parents[2]
#: A fenced command and the fenced output that follows it.
SHOWN = re.compile(r"```(sh|python)\n((?:(?!```).)*)```\n+```(json|text)\n((?:(?!```).)*)```", re.DOTALL)
SHOWN_BY = {
    name: SHOWN.findall((ROOT / name).read_text()) for name in ("README.md", "docs/start.md", "docs/systemd.md")
}
#: Each once: the README's are on the other pages, too.
EXAMPLES = sorted({example for examples in SHOWN_BY.values() for example in examples})


def test_the_pages_show_commands_and_clients() -> None:
    shown = [" ".join(language for language, _, _, _ in examples) for examples in SHOWN_BY.values()]
    assert shown == ["sh sh", "sh python sh sh python sh sh sh", "sh sh"]


@pytest.mark.parametrize(("language", "code", "kind", "output"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_example_prints_what_is_shown(
    samples: Server, tmp_path: Path, language: str, code: str, kind: str, output: str
) -> None:
    code = code.replace("localhost:8000", samples.url).replace("localhost:8001", f"127.0.0.1:{samples.grpc_port}")
    if "install-systemd" in code:  # into a folder of ours, without becoming root
        code = code.replace("sudo .venv/bin/shoal", str(Path(sys.executable).with_name("shoal")))
        code = f"{code.rstrip()} --output {tmp_path}/shoal.service"
        output = output.replace("/etc/systemd/system", str(tmp_path))
    command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SHOAL_CLIENT_SOCKET": samples.client_socket}
    printed = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    if kind == "json":
        assert json.loads(printed) == json.loads(output)
    else:
        assert printed == output


def test_the_tree_for_contributors_is_the_tree() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## The tree")[1].split("```")[1]
    folder = ROOT
    for line in filter(None, tree.splitlines()):
        name = re.split(r"\s{2,}", line.lstrip("├└─ "), maxsplit=1)[0].strip()
        if not line.startswith(("├", "└")):
            folder = ROOT / name
        assert (folder / name if line.startswith(("├", "└")) else folder).exists(), line
