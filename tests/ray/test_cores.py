"""shoal/ray/cores.py: a core is one process's at a time, and free when that process is gone."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.ray.cores import claim_cores

CLAIM = """
import pathlib, sys
from shoal.ray.cores import claim_cores
claimed = claim_cores(int(sys.argv[2]), pathlib.Path(sys.argv[1]), range(4))
print(claimed and claimed.cores, flush=True)
sys.stdin.read()
"""


def test_claims_are_disjoint_and_given_back(tmp_path: Path) -> None:
    first = claim_cores(2, tmp_path, range(4))
    second = claim_cores(1, tmp_path, range(4))
    assert first is not None
    assert second is not None
    assert (first.cores, second.cores) == ((0, 1), (2,))
    assert claim_cores(2, tmp_path, range(4)) is None  # and what it found free is free again:
    third = claim_cores(1, tmp_path, range(4))
    assert third is not None
    assert third.cores == (3,)
    for each in (first, second, third):
        each.close()
        each.close()
    whole = claim_cores(4, tmp_path, range(4))
    assert whole is not None
    whole.close()


def test_only_allowed_cores_are_claimed(tmp_path: Path) -> None:
    claimed = claim_cores(2, tmp_path, [7, 5, 3])
    assert claimed is not None
    assert claimed.cores == (3, 5)
    claimed.close()


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    Path(tmp_path, "file").write_text("")
    with pytest.raises(OSError, match="file"):
        claim_cores(1, tmp_path / "file", range(4))


def test_cores_of_a_killed_process_are_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path), "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "(0, 1, 2)\n"
        assert claim_cores(2, tmp_path, range(4)) is None
        process.kill()
        process.wait()
    claimed = claim_cores(4, tmp_path, range(4))
    assert claimed is not None
    claimed.close()
