"""Copies on the local disk: complete or absent, reused, kept apart between servers, and forgotten."""

import os
from pathlib import Path

import pytest

from shoal.cloud_url import CloudUrl
from shoal.errors import UnavailableError
from shoal.repository.cloud_cache import CopyCache, take_slot
from shoal.repository.cloud_listing import CloudModel, CloudObject, sort_out

URL = CloudUrl.parse("s3://bucket/models")


def model(**contents: bytes) -> CloudModel:
    """A model with these files in version 1; what they contain is their tag, too."""
    objects = [CloudObject(f"m/1/{name}", len(body), body.hex(), 5) for name, body in contents.items()]
    return sort_out([*objects, CloudObject("m/1", is_directory=True)], URL).models["m"]


def copy(cache: CopyCache, **contents: bytes) -> Path:
    """As a fetch does it."""
    wanted = model(**contents)
    with cache.workplace() as workplace:
        for number, path in enumerate(cache.missing(wanted)):
            (workplace / str(number)).write_bytes(contents[path.removeprefix("1/")])
            cache.keep_object(workplace / str(number), wanted, path)
        return cache.assemble(wanted, workplace)


def entries(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_a_copy_is_found_by_its_content(tmp_path: Path) -> None:
    cache = CopyCache(tmp_path)
    assert cache.find(model(a=b"1")) is None
    made = copy(cache, a=b"1", b=b"")
    assert made == tmp_path / model(a=b"1", b=b"").tag / "m"
    assert (made / "1/a").read_bytes() == b"1"
    assert cache.find(model(a=b"1", b=b"")) == made
    assert cache.find(model(a=b"2", b=b"")) is None
    assert entries(tmp_path) == {"objects", made.parent.name}


def test_a_model_of_directories_only(tmp_path: Path) -> None:
    cache = CopyCache(tmp_path)
    assert cache.find(model()) is None
    made = copy(cache)
    assert ((made / "1").is_dir(), cache.find(model())) == (True, made)


def test_an_incomplete_download_makes_no_copy(tmp_path: Path) -> None:
    cache, wanted = CopyCache(tmp_path), model(a=b"12")
    with cache.workplace() as workplace:
        (workplace / "0").write_bytes(b"1")
        cache.keep_object(workplace / "0", wanted, "1/a")
        cache.keep_object(workplace / "missing", wanted, "1/a")
        with pytest.raises(UnavailableError) as refusal:
            cache.assemble(wanted, workplace)
    assert str(refusal.value) == "object 'm/1/a' did not come with the 2 bytes it should have"
    assert (cache.find(wanted), entries(tmp_path), entries(tmp_path / "objects")) == (None, {"objects"}, set())


def test_a_copy_that_a_power_failure_cut_short_is_made_anew(tmp_path: Path) -> None:
    cache = CopyCache(tmp_path)
    made = copy(cache, a=b"12")
    os.truncate(made / "1/a", 0)
    assert cache.find(model(a=b"12")) is None
    assert (copy(cache, a=b"12") / "1/a").read_bytes() == b"12"


def test_what_is_on_the_disk_is_not_missing(tmp_path: Path) -> None:
    cache = CopyCache(tmp_path)
    first = copy(cache, a=b"1", b=b"2")
    assert set(cache.missing(model(a=b"1", b=b"3"))) == {"1/b"}
    second = copy(cache, a=b"1", b=b"3")
    assert (first / "1/a").samefile(second / "1/a")
    assert (first / "1/b").read_bytes() == b"2"


def test_without_hard_links_the_copy_takes_the_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(source, target)

    monkeypatch.setattr(os, "link", refuse)
    cache = CopyCache(tmp_path)
    assert (copy(cache, a=b"1") / "1/a").read_bytes() == b"1"
    assert entries(tmp_path / "objects") == set()


def test_times_are_the_clouds_and_tell_contents_apart(tmp_path: Path) -> None:
    cache = CopyCache(tmp_path)
    both, changed, less = copy(cache, a=b"1", b=b"2"), copy(cache, a=b"1", b=b"3"), copy(cache, a=b"1")
    stamps = [(each / "1").stat().st_mtime_ns for each in (both, changed, less)]
    assert len(set(stamps)) == 3
    assert {stamp // 10**9 for stamp in stamps} == {5}
    newest_file_ns = max((both / "1" / name).stat().st_mtime_ns for name in "ab")
    assert stamps[0] > newest_file_ns >= 5 * 10**9
    assert (both / "1").stat().st_mtime_ns == (copy(CopyCache(tmp_path / "x"), a=b"1", b=b"2") / "1").stat().st_mtime_ns


def test_unneeded_copies_are_removed(tmp_path: Path) -> None:
    cache = CopyCache(tmp_path)
    old, kept, other = copy(cache, a=b"1"), copy(cache, a=b"1", b=b"2"), copy(cache, c=b"3")
    (tmp_path / ".killed").mkdir()
    (tmp_path / ".killed" / "half").write_bytes(b"4")
    cache.forget({kept / "1", tmp_path / "elsewhere"})
    assert entries(tmp_path) == {"objects", kept.parent.name}
    assert len(entries(tmp_path / "objects")) == 2
    assert (old.exists(), other.exists(), (kept / "1/a").read_bytes()) == (False, False, b"1")
    cache.forget(())
    assert (entries(tmp_path), entries(tmp_path / "objects")) == ({"objects"}, set())


def test_what_a_fetch_makes_is_not_removed_during_it(tmp_path: Path) -> None:
    """Neither its downloads, nor objects that no copy has yet, nor the copy; all else is."""
    cache, begun = CopyCache(tmp_path), model(a=b"1", b=b"2")
    old = copy(cache, a=b"3")
    with cache.workplace() as workplace:
        download = workplace / "0"
        download.write_bytes(b"1")
        cache.keep_object(download, begun, "1/a")
        (workplace / "1").write_bytes(b"2")
        cache.forget((), [begun])
        assert (old.exists(), workplace.exists()) == (False, True)
        assert list(cache.missing(begun)) == ["1/b"]
        cache.keep_object(workplace / "1", begun, "1/b")
        made = cache.assemble(begun, workplace)
        cache.forget((), [begun])
        assert made.exists()
    cache.forget(())
    assert (entries(tmp_path), entries(tmp_path / "objects")) == ({"objects"}, set())


def test_forgetting_in_a_cache_that_was_never_used(tmp_path: Path) -> None:
    CopyCache(tmp_path / "none").forget(())
    assert entries(tmp_path) == set()


def test_servers_take_slots_and_a_stopped_ones_is_taken_again(tmp_path: Path) -> None:
    environ = {"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "mounted" / "here")}
    first, second = take_slot(URL, environ), take_slot(URL, environ)
    other = take_slot(CloudUrl.parse("s3://bucket/others"), environ)
    assert first.directory.parent == second.directory.parent != other.directory.parent
    assert [each.directory.name for each in (first, second, other)] == ["0", "1", "0"]
    assert first.directory.parent.parent == tmp_path / "mounted" / "here"
    os.close(first.lock)
    third = take_slot(URL, environ)
    assert third.directory == first.directory
    for each in (second, other, third):
        os.close(each.lock)


def test_each_cloud_has_its_own_variable(tmp_path: Path) -> None:
    variables = {"gs": "TRITON_GCS_MOUNT_DIRECTORY", "as": "TRITON_AZURE_MOUNT_DIRECTORY"}
    for scheme, variable in variables.items():
        slot = take_slot(CloudUrl(scheme, "bucket", ""), {variable: str(tmp_path / scheme)})
        os.close(slot.lock)
        assert tmp_path / scheme in slot.directory.parents


def test_without_the_variable_only_this_user_can_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.close(take_slot(URL, {}).lock)
    root = tmp_path / f"shoal-{os.getuid()}"
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_name_that_another_user_has_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / f"shoal-{os.getuid()}"
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError) as refusal:
        take_slot(URL, {})
    assert str(refusal.value) == (
        f"copies of models from {URL} cannot be kept in '{root}': it is another user's, or no directory; "
        "set TRITON_AWS_MOUNT_DIRECTORY to a directory that the server's user can write to"
    )
    assert entries(tmp_path / "elsewhere") == set()


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        UnavailableError, match=r"cannot be kept in .*: Not a directory; set TRITON_AWS_MOUNT_DIRECTORY"
    ):
        take_slot(URL, {"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "file")})
