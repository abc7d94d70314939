"""The fixture shoal_server: a server that ends with the test, and costs nothing where none is used."""

import os
import subprocess
import sys
from pathlib import Path

from tests.testing.models import DOUBLE, write_python

ROOT = Path(__file__).parents[1]

TEST = """
import sys

def test_nothing_is_imported_before():
    assert not {"shoal.testing", "numpy", "google.protobuf"} & set(sys.modules)

def test_a_server(shoal_server):
    server = shoal_server("models")
    assert server.infer("double", {"X": [[1, 2]]})["Y"].tolist() == [[2, 4]]
    assert shoal_server("models/double").models == ["double"]

def test_it_has_ended():
    assert open("finalized").read() == "xx"
"""


def test_a_server_ends_with_its_test(tmp_path: Path) -> None:
    finalize = """
    def finalize(self):
        with open("finalized", "a") as file:
            file.write("x")
"""
    write_python(tmp_path / "models", "double", DOUBLE + finalize)
    (tmp_path / "test_it.py").write_text(TEST)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "shoal.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr
