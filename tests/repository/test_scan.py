"""scan.py: models, versions and model files on a real disk."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.repository.cloud_listing import CloudObject, sort_out
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.scan import RepositoryScan, model_file, scan, version_directories, wanted_versions

BOTH = ModelIdentifier("both")


def make(parent: Path, *names: str) -> Path:
    for name in names:
        (parent / name).mkdir(parents=True)
    return parent


def config(filename: str, **by_compute_capability: str) -> dict[str, Any]:
    return {"name": "m", "default_model_filename": filename, "cc_model_filenames": by_compute_capability}


def test_models_of_two_repositories_by_name(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", "mlp", "nop_-1,-1", "é 日本", ".git", "lost+found"), make(tmp_path / "b", "_x")
    (first / "README.md").write_text("")
    (second / "linked").symlink_to(first / "mlp")
    (second / "dangling").symlink_to("nowhere")
    found = scan([first, second])
    assert found == RepositoryScan(
        models={
            ModelIdentifier("_x"): second / "_x",
            ModelIdentifier("linked"): second / "linked",
            ModelIdentifier("mlp"): first / "mlp",
            ModelIdentifier("nop_-1,-1"): first / "nop_-1,-1",
            ModelIdentifier("é 日本"): first / "é 日本",
        },
        problems={},
    )
    assert [identifier.name for identifier in found.models] == ["_x", "linked", "mlp", "nop_-1,-1", "é 日本"]


def test_a_model_that_is_a_problem_in_another_repository_is_one(tmp_path: Path) -> None:
    url = CloudUrl.parse("s3://bucket/models")
    cloud: Any = SimpleNamespace(
        url=url, listing=lambda: sort_out([CloudObject("both/1//x"), CloudObject("n/1/x")], url)
    )
    found = scan([make(tmp_path / "a", "both"), cloud])
    assert found.problems == {BOTH: "model appears in two or more repositories"}
    assert list(found.models) == [("n", "")]


def test_a_model_in_two_repositories_is_a_problem_and_the_others_stay(tmp_path: Path) -> None:
    found = scan([make(tmp_path / "a", "both", "one"), make(tmp_path / "b", "both")])
    assert found.problems == {BOTH: "model appears in two or more repositories"}
    assert list(found.models) == [("one", "")]


def test_with_namespacing_a_model_in_two_repositories_is_two_models(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", "both", "one"), make(tmp_path / "b", "both", "two\nlines")
    found = scan([first, second], namespacing=True)
    assert found.models == {
        ("both", str(first)): first / "both",
        ("both", str(second)): second / "both",
        ("one", str(first)): first / "one",
    }
    assert list(found.problems) == [("two\nlines", str(second))]


def test_with_namespacing_a_repository_that_is_named_twice_is_still_one(tmp_path: Path) -> None:
    repository = make(tmp_path, "both")
    found = scan([repository, repository], namespacing=True)
    assert found.problems == {("both", str(tmp_path)): "model appears in two or more repositories"}
    assert not found.models


@pytest.mark.parametrize("name", ["line\n", "\x7f", "caf\udce9"])
def test_a_directory_that_cannot_be_a_model(tmp_path: Path, name: str) -> None:
    found = scan([make(tmp_path, name, "good")])
    assert list(found.models) == [("good", "")]
    assert found.problems == {
        ModelIdentifier(name.replace("\udce9", "\\udce9")): f"directory name {name!r} is no model name: "
        "expected at most 255 bytes of UTF-8 without control characters; rename the directory"
    }


@pytest.mark.parametrize("make_one", [False, True])
def test_a_repository_that_cannot_be_read(tmp_path: Path, make_one: bool) -> None:
    repository = tmp_path / "repository"
    if make_one:
        repository.write_text("")
    with pytest.raises(InvalidArgumentError) as caught:
        scan([repository])
    reason = "Not a directory" if make_one else "No such file or directory"
    assert str(caught.value) == (
        f"failed to read the directory '{repository}': {reason}; "
        "name an existing, readable directory with --model-repository"
    )


def test_versions_ascending_and_the_rest_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, "10", "9", "0", "007", "1abc", "-1", "²", "9" * 30, "configs", "warmup", "initial_state", ".tmp")
    (tmp_path / "3").write_text("")
    with caplog.at_level(logging.WARNING):
        versions = version_directories(tmp_path)
    assert list(versions.items()) == [(0, tmp_path / "0"), (9, tmp_path / "9"), (10, tmp_path / "10")]
    rule = f"; versions of '{tmp_path}' have numbers for names"
    numeric = "ignore version directory '%s' which fails to convert to integral number" + rule
    assert caplog.messages == [
        numeric % "-1",
        "ignore version directory '007' which contains leading zeros in its directory name",
        numeric % "1abc",
        numeric % ("9" * 30),
        numeric % "²",
    ]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ({"latest": {"num_versions": 1}}, (10,)),
        ({"latest": {"num_versions": 2}}, (9, 10)),
        ({"latest": {"num_versions": 99}}, (2, 9, 10)),
        ({"all": {}}, (2, 9, 10)),
        ({}, (2, 9, 10)),
        ({"specific": {"versions": [10, 2]}}, (2, 10)),
    ],
)
def test_wanted_versions(policy: dict[str, Any], wanted: tuple[int, ...]) -> None:
    assert wanted_versions([10, 2, 9], policy, "m") == wanted


def test_a_specific_version_that_is_missing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert wanted_versions({1: "one"}, {"specific": {"versions": [1, 4]}}, "m") == (1,)
    assert caplog.messages == ["version 4 is specified for model 'm', but the version directory is not present"]


@pytest.mark.parametrize(
    ("available", "policy"),
    [
        ((), {"all": {}}),
        ((), {"latest": {"num_versions": 1}}),
        ((1, 2), {"latest": {"num_versions": 0}}),
        ((1, 2), {"specific": {"versions": [3]}}),
    ],
)
def test_no_version_left(available: tuple[int, ...], policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        wanted_versions(available, policy, "m")
    assert str(caught.value) == "at least one version must be available under the version policy of model 'm'"


def test_the_model_file(tmp_path: Path) -> None:
    make(tmp_path, "sub", "model.onnx")
    (tmp_path / "sub" / "a.onnx").write_text("")
    (tmp_path / "latest.onnx").symlink_to("sub/a.onnx")
    assert model_file(tmp_path, config("sub/a.onnx"), "m_0") == tmp_path / "sub" / "a.onnx"
    assert model_file(tmp_path, config("latest.onnx"), "m_0") == tmp_path / "latest.onnx"
    assert model_file(tmp_path, config("model.onnx"), "m_0") == tmp_path / "model.onnx"
    assert model_file(tmp_path, config(""), "m_0") is None


def test_the_model_file_of_a_compute_capability(tmp_path: Path) -> None:
    for name in ("model.onnx", "ampere.onnx"):
        (tmp_path / name).write_text("")
    both = config("model.onnx", **{"8.0": "ampere.onnx"})
    assert model_file(tmp_path, both, "m_0", "8.0") == tmp_path / "ampere.onnx"
    assert model_file(tmp_path, both, "m_0", "9.0") == tmp_path / "model.onnx"
    assert model_file(tmp_path, both, "m_0") == tmp_path / "model.onnx"


def test_a_version_directory_may_be_a_link(tmp_path: Path) -> None:
    (make(tmp_path, "store") / "store" / "model.onnx").write_text("")
    (tmp_path / "1").symlink_to("store")
    assert model_file(tmp_path / "1", config("model.onnx"), "m_0") == tmp_path / "1" / "model.onnx"


def test_a_model_file_may_be_a_link_to_elsewhere(tmp_path: Path) -> None:
    version_dir = make(tmp_path, "1", "blobs") / "1"
    (tmp_path / "blobs" / "6fa3").write_text("")
    (version_dir / "model.onnx").symlink_to("../blobs/6fa3")
    assert model_file(version_dir, config("model.onnx"), "m_0") == version_dir / "model.onnx"


@pytest.mark.parametrize("name", ["elsewhere", "model.onnx", None])
def test_a_model_file_that_is_not_there(tmp_path: Path, name: str | None) -> None:
    if name is not None:
        (tmp_path / "model.onnx").symlink_to(name)
    with pytest.raises(UnavailableError) as caught:
        model_file(tmp_path, config("model.onnx"), "m_0")
    assert str(caught.value) == f"unable to find '{tmp_path}/model.onnx' for model instance 'm_0'"


@pytest.mark.parametrize("make_special", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_fifo_or_a_device_in_place_of_a_model_is_refused(
    tmp_path: Path, make_special: Callable[[Path], None]
) -> None:
    make_special(tmp_path / "model.py")
    with pytest.raises(UnavailableError) as caught:
        model_file(tmp_path, config("model.py"), "m_0")
    assert str(caught.value) == (
        f"'{tmp_path}/model.py' for model instance 'm_0' cannot be read: it is not a regular file; put the model's "
        "file in its place"
    )


@pytest.mark.parametrize("filename", ["../outside", "/bin/sh", ".", "sub/../../outside"])
def test_a_model_file_outside_is_refused(tmp_path: Path, filename: str) -> None:
    version_dir = make(tmp_path, "1") / "1"
    (tmp_path / "outside").write_text("")
    with pytest.raises(InvalidArgumentError) as caught:
        model_file(version_dir, config(filename), "m_0")
    assert str(caught.value) == (
        f"model file '{filename}' of model 'm' is outside its version directory '{version_dir}'; name a file in it"
    )
