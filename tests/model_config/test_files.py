"""files.py: regular files up to a bound, and nothing that could block or never end."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.model_config import files


@pytest.mark.parametrize(("limit", "expected"), [(0, b""), (2, b"ab"), (3, b"abc"), (100, b"abc")])
def test_what_a_file_has_up_to_the_limit(tmp_path: Path, limit: int, expected: bytes) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert files.read(tmp_path / "file", limit) == files.read(tmp_path / "link", limit) == expected


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, num_descriptors: Callable[[], int]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    before = num_descriptors()
    no_file = "it is not a regular file"
    reasons = {
        "fifo": no_file,
        "device": no_file,
        "directory": "Is a directory",
        "dangling": "No such file or directory",
    }
    for name, reason in reasons.items():
        with pytest.raises(OSError, match=reason):
            files.read(tmp_path / name, 10)
    assert num_descriptors() == before
