"""Descriptors of a process: how many it has and may have, and what a log or an answer says where none is left."""

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from shoal import open_files
from shoal.open_files import RAISE_TASKS, explain, explain_start, limit, num_open
from tests.scarcity import limited, no_descriptors_left

RAISE = "Raise the limit of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or ulimit -n"


@pytest.fixture(autouse=True)
def unknown_kernel() -> Iterator[None]:
    open_files._size_tells.cache_clear()
    yield
    open_files._size_tells.cache_clear()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("size", [None, 0, 4096], ids=["this kernel", "a kernel before 6.2", "a sandbox"])
def test_what_is_open_is_counted(size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if size is not None:
        monkeypatch.setattr(os, "stat", lambda _path: os.stat_result([size] * 10))
    before = num_open()
    ends = os.pipe()
    assert num_open() == before + 2
    for fd in ends:
        os.close(fd)


@pytest.mark.usefixtures("no_garbage")
def test_what_is_open_is_counted_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", lambda _path: os.stat_result([0] * 10))
    with no_descriptors_left():
        assert num_open() == 3


def test_the_limit_is_the_soft_one() -> None:
    with limited(resource.RLIMIT_NOFILE, 200):
        assert limit() == 200


def test_an_error_for_lack_of_descriptors_names_limit_and_cure() -> None:
    with limited(resource.RLIMIT_NOFILE, 200):
        told = explain(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert told == f"no file descriptor is left, a process of the server's may have 200. {RAISE}"
    assert "fs.file-max" in explain(OSError(errno.ENFILE, os.strerror(errno.ENFILE)))


def test_a_start_for_which_no_process_is_left_names_the_cure() -> None:
    told = explain_start(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    assert told == f"this user, or its control group, may have no further process. {RAISE_TASKS}"
    assert explain_start(OSError(errno.ENOMEM, "Cannot allocate memory")) == "[Errno 12] Cannot allocate memory"


def test_other_errors_say_what_they_say() -> None:
    assert explain(OSError(errno.ENOMEM, "Cannot allocate memory")) == "[Errno 12] Cannot allocate memory"
    assert explain(ValueError("no number")) == "no number"
