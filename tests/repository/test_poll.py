"""The look into real directories: configurations, versions, labels, modification times, and what is wrong with them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.poll import NO_OVERRIDE, Override, Repositories, newest_ns

CONFIG = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }
version_policy { latest { num_versions: 2 } }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    model = tmp_path / "simple"
    for version in ("1", "2", "3"):
        (model / version).mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "labels.txt").write_text("cat\ndog\n")
    for number, path in enumerate(sorted(model.rglob("*")), 1):
        os.utime(path, ns=(number * 1000, number * 1000))
    return tmp_path


def look(repository: Path) -> FoundModel:
    found = Repositories([repository]).look("simple")
    assert found is not None
    return found


def test_a_model_is_found_with_the_versions_its_policy_wants(repository: Path) -> None:
    found = look(repository)
    assert found.error is None
    assert found.config["name"] == "simple"
    assert found.config["version_policy"] == {"latest": {"num_versions": 2}}
    assert found.labels == {"OUTPUT0": ("cat", "dog")}
    assert {number: version.directory for number, version in found.versions.items()} == {
        2: repository / "simple" / "2",
        3: repository / "simple" / "3",
    }
    assert [version.modified_ns for version in found.versions.values()] == [2000, 3000]
    assert found.others_ns == 5000


@pytest.mark.parametrize("inside", ["simple", ""])
def test_a_repository_of_a_request_has_one_model_under_any_name(repository: Path, inside: str) -> None:
    model = repository / "simple"
    (model / "config.pbtxt").write_text(f'name: "other"\n{CONFIG}')
    found = Repositories([]).look("H", Override(repository=repository / inside))
    assert found is not None
    assert (found.name, found.config["name"], found.error) == ("H", "H", None)
    assert [version.directory for version in found.versions.values()] == [model / "2", model / "3"]


def test_a_repository_of_a_request_without_one_model(repository: Path) -> None:
    (repository / "second").mkdir()
    for inside, num_models in (("", 2), ("second", 0)):  # neither is made of the other
        place = repository / inside
        with pytest.raises(InvalidArgumentError) as refusal:
            Repositories([]).look("H", Override(repository=place))
        assert str(refusal.value) == (
            f"expected one model in '{place}', found {num_models}, of which 0 are ensembles of the others; put "
            "config.pbtxt there, a single directory that is a model, or an ensemble and its models"
        )
    with pytest.raises(InvalidArgumentError, match="failed to read the directory"):
        Repositories([]).look("H", Override(repository=repository / "none"))


def test_a_repository_of_a_request_with_an_ensemble_and_its_models(repository: Path) -> None:
    for name, step in (("graph", "inner"), ("inner", "simple")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(
            'platform: "ensemble" input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "B" data_type: '
            f'TYPE_FP32 dims: 1 }} ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1 input_map {{ '
            'key: "A" value: "A" } output_map { key: "B" value: "B" } } }'
        )
    found = Repositories([]).look("H", Override(repository=repository))
    assert found is not None
    assert (found.name, found.namespace, found.directory, found.error) == (
        "H", str(repository), repository / "graph", None,
    )  # fmt: skip
    composing = Repositories([]).look("inner", preferred=str(repository))
    assert composing is not None
    assert composing.identifier == ModelIdentifier("inner", str(repository))


def test_it_travels_as_a_message(repository: Path) -> None:
    found = look(repository)
    assert FoundModel.from_message(found.message(1)) == found


def test_a_file_deep_in_a_version_makes_it_newer_and_no_other(repository: Path) -> None:
    before = look(repository)
    deep = repository / "simple" / "3" / "weights" / "part"
    deep.parent.mkdir()
    deep.write_bytes(b"x")
    for path in (deep, deep.parent, deep.parent.parent):
        os.utime(path, ns=(9000, 9000))
    after = look(repository)
    assert (after.versions[3].modified_ns, after.versions[2]) == (9000, before.versions[2])
    assert after.others_ns == before.others_ns


def test_neither_a_new_version_nor_the_configuration_counts_as_another_file(repository: Path) -> None:
    before = look(repository)
    (repository / "simple" / "4").mkdir()
    (repository / "simple" / "configs").mkdir()
    (repository / "simple" / ".cache").mkdir()
    (repository / "simple" / "config.pbtxt").write_text(CONFIG + "\n")
    after = look(repository)
    assert after.others_ns == before.others_ns
    (repository / "simple" / "warmup").mkdir()
    assert look(repository).others_ns > before.others_ns


def test_a_bad_configuration_is_the_models_error(repository: Path) -> None:
    (repository / "simple" / "config.pbtxt").write_text("bachend: 'identity'")
    found = look(repository)
    assert isinstance(found.error, InvalidArgumentError)
    assert "bachend" in str(found.error)
    assert not found.versions
    assert str(FoundModel.from_message(found.message(1)).error) == str(found.error)


def test_bad_labels_fail_the_versions(repository: Path) -> None:
    (repository / "simple" / "labels.txt").unlink()
    found = look(repository)
    assert "label file path 'labels.txt'" in str(found.error)
    assert list(found.versions) == [2, 3]


def test_another_directory_stands_in_for_the_model(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    private = tmp_path_factory.mktemp("private") / "simple"
    (private / "7").mkdir(parents=True)
    (private / "config.pbtxt").write_text('backend: "identity"')
    found = Repositories([repository]).look("simple", Override(None, private))
    assert found is not None
    assert (found.directory, list(found.versions)) == (private, [7])


def test_who_is_not_there_is_not_found(repository: Path) -> None:
    assert Repositories([repository]).look("other") is None
    assert Repositories([repository, repository]).look("simple") is None  # in two repositories


def test_a_link_that_points_nowhere_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.utime(tmp_path, ns=(1000, 1000))
    assert newest_ns(tmp_path)[0] == 1000
    assert newest_ns(tmp_path / "link") == (0, 0, "")


def test_with_namespacing_a_model_is_found_by_its_name_while_no_other_has_it(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first / "both" / "1", second / "both" / "1", second / "one" / "1"):
        directory.mkdir(parents=True)
        (directory.parent / "config.pbtxt").write_text(CONFIG.replace('label_filename: "labels.txt"', ""))
    repositories = Repositories([first, second], namespacing=True)
    found = repositories.look("one")
    assert found is not None
    assert found.identifier == ("one", str(second))
    assert FoundModel.from_message(found.message(1)) == found
    # A directory of the request's own stands in for the model of that repository, or for none.
    for name, namespace in (("one", str(second)), ("new", "")):
        found = repositories.look(name, Override(None, first / "both"))
        assert found is not None
        assert (found.identifier, found.directory) == ((name, namespace), first / "both")
    for override in (NO_OVERRIDE, Override(None, first / "both")):
        with pytest.raises(InvalidArgumentError, match=r"^There are 2 identifiers of model 'both' in global map, "):
            repositories.look("both", override)
    for preferred in (first, second):
        found = repositories.look("both", preferred=str(preferred))
        assert found is not None
        assert found.identifier == ("both", str(preferred))
    found = repositories.look("one", preferred=str(first))  # which has none
    assert found is not None
    assert found.identifier == ("one", str(second))
    assert repositories.look("none") is None


@pytest.mark.parametrize("kind", ["pipe", "huge", "no text", "directory"])
def test_a_model_is_found_whatever_its_rollout_json_is(
    repository: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = repository / "simple" / "rollout.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"\xff" if kind == "no text" else b"{}".ljust(1 << 17))
    found = look(repository)
    assert (found.error, found.rollout) == (None, "")
    assert f"'{path}' cannot be read" in caplog.text


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("backend", "entry"), [("tensorflow", "model.savedmodel/variables/data"), ("onnxruntime", "weights.bin")]
)
@pytest.mark.parametrize("make", [os.mkfifo, make_socket, lambda path: path.symlink_to("/dev/zero")])
def test_a_framework_is_given_no_fifo_socket_or_device(
    tmp_path: Path, backend: str, entry: str, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would open it, and wait for a writer, or read it for ever."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    special = Path("simple/1", entry)
    special.parent.mkdir(parents=True)
    Path("simple/config.pbtxt").write_text(f'backend: "{backend}"')
    special.touch()
    assert look(Path()).error is None
    special.unlink()
    make(special)
    assert str(look(Path()).error) == (
        f"'{special}' of model 'simple' cannot be read: it is not a regular file; put the model's file in its place"
    )


def test_a_model_of_python_may_have_a_fifo(tmp_path: Path) -> None:
    (tmp_path / "simple/1").mkdir(parents=True)
    (tmp_path / "simple/config.pbtxt").write_text('backend: "python"')
    os.mkfifo(tmp_path / "simple/1/queue")
    assert look(tmp_path).error is None
