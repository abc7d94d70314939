"""cache.py: made once, whatever happens on the way; half of one is never used."""

import fcntl
import os
import pwd
import threading
from pathlib import Path

import pytest

from shoal.environments.cache import Cache, cache_directory
from shoal.errors import UnavailableError


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    made.prepare()
    return made


def fill(directory: Path) -> None:
    (directory / "file").touch()


def never(directory: Path) -> None:
    raise AssertionError(directory)


def test_it_is_made_once(cache: Cache) -> None:
    directory = cache.get("key", fill, print)
    assert os.listdir(directory) == ["file"]
    assert Cache(cache.root).get("key", never, print) == directory
    assert cache.get("other", fill, print) != directory


def test_what_fails_leaves_nothing(cache: Cache) -> None:
    def fail(directory: Path) -> None:
        fill(directory)
        raise UnavailableError("no")

    with pytest.raises(UnavailableError, match="no"):
        cache.get("key", fail, print)
    assert not (cache.root / "key").exists()
    assert os.listdir(cache.get("key", fill, print)) == ["file"]


def test_what_a_killed_process_has_left_is_made_anew(cache: Cache) -> None:
    half = cache.root / "key" / "environment" / "half"
    half.mkdir(parents=True)
    assert os.listdir(cache.get("key", fill, print)) == ["file"]


def test_two_that_need_the_same_wait_for_each_other(cache: Cache) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    calls: list[Path] = []
    said: list[str] = []

    def slowly(directory: Path) -> None:
        calls.append(directory)
        has_begun.set()
        may_end.wait(10)
        fill(directory)

    both = [threading.Thread(target=cache.get, args=("key", slowly, said.append)) for _ in range(2)]
    for each in both:
        each.start()
    assert has_begun.wait(10)
    with open(cache.root / "key.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    may_end.set()
    for each in both:
        each.join(10)
    assert len(calls) == 1
    assert set(said) <= {"another process makes environment key; waiting for it"}
    assert os.listdir(cache.get("key", never, print)) == ["file"]


def test_the_digest_is_that_of_the_contents(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert cache.digest(file) == abc
    assert cache.digest(file) == abc
    status = file.stat()
    file.write_bytes(b"abcd")
    assert cache.digest(file) != abc
    file.write_bytes(b"abc")
    assert cache.digest(file) == abc
    # It is read again only where it has been touched: this difference nobody could see.
    file.write_bytes(b"xyz")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    noted = next((cache.root / "digests").iterdir())
    noted.write_text(f"{status.st_dev} {file.stat().st_ino} 3 {status.st_mtime_ns} noted")
    assert cache.digest(file) == "noted"


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"cannot be kept in '.*/file/below': Not a directory; give a directory"):
        Cache(tmp_path / "file" / "below").prepare()


@pytest.mark.parametrize(
    ("flag", "environ", "directory"),
    [
        ("/flag", {"CACHE_DIRECTORY": "/systemd", "XDG_CACHE_HOME": "/xdg"}, "/flag"),
        ("", {"CACHE_DIRECTORY": "/systemd:/second", "XDG_CACHE_HOME": "/xdg"}, "/systemd/environments"),
        ("", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/shoal/environments"),
        ("", {"XDG_CACHE_HOME": "relative, which XDG says to ignore"}, "/home/of/user/.cache/shoal/environments"),
        ("", {}, "/home/of/user/.cache/shoal/environments"),
    ],
)
def test_where_it_lies(flag: str, environ: dict[str, str], directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/user")
    assert cache_directory(flag, environ) == Path(directory)


def test_a_user_without_a_home_directory_needs_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `docker run --user 12345`, where no variable names a directory either."""

    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cache_directory("/flag", {}) == Path("/flag")
    with pytest.raises(UnavailableError, match=r"has no home directory; give a .* as --environment-cache-directory"):
        cache_directory("", {})
