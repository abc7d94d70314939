"""Paths in place of a repository: what each is served as, and what is linked for it."""

from pathlib import Path

import pytest

from shoal.cli.served_paths import MAX_BESIDE, PathError, archive_flags, served_paths
from tests.end_to_end.server import SAMPLES

FORESTS = Path(__file__).parents[1] / "data" / "forests"


def touch(directory: Path, *names: str) -> Path:
    """The directory, with empty files of these names."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).touch()
    return directory


def test_a_repository_is_itself() -> None:
    with served_paths([SAMPLES]) as (repositories, models):
        assert (repositories, models) == ([SAMPLES], [])


def test_nothing_is_made_for_nothing() -> None:
    with served_paths([]) as served:
        assert served == ([], [])


def test_a_model_is_linked_and_the_links_are_removed() -> None:
    with served_paths([SAMPLES / "simple", SAMPLES / "digits"]) as ((repository,), models):
        assert [model.name for model in models] == ["simple", "digits"]
        assert (repository / "simple" / "config.pbtxt").read_bytes() == (SAMPLES / "simple/config.pbtxt").read_bytes()
        assert sorted(each.name for each in repository.iterdir()) == ["digits", "simple"]
    assert not repository.exists()
    assert (SAMPLES / "simple" / "1").is_dir()


@pytest.mark.parametrize(
    ("file", "name", "backend"),
    [
        ("resnet.onnx", "resnet", "onnxruntime"),
        ("resnet 50.v2.onnx", "resnet 50.v2", "onnxruntime"),
        ("model.onnx", "nets", "onnxruntime"),
        ("model.py", "nets", "python"),
        ("echo.py", "echo", "python"),
        ("net.xml", "net", "openvino"),
        ("net.plan", "net", "tensorrt"),
    ],
)
def test_a_file_gets_a_name_and_a_configuration(tmp_path: Path, file: str, name: str, backend: str) -> None:
    path = touch(tmp_path / "nets", file, "net.bin", "weights.data") / file
    with served_paths([path]) as ((repository,), (model,)):
        assert model == (name, path, f'backend: "{backend}"\ndefault_model_filename: "{file}"\n')
        assert (repository / name / "config.pbtxt").read_text() == model.config
        assert sorted(each.name for each in (repository / name / "1").iterdir()) == sorted(
            [file, "net.bin", "weights.data"]
        )


@pytest.mark.parametrize(
    ("file", "model_type", "is_classifier"),
    [
        ("xgboost.json", "xgboost_json", "true"),
        ("xgboost.ubj", "xgboost_ubj", "true"),
        ("lightgbm.txt", "lightgbm", "false"),
        ("classifier.txt", "lightgbm", "true"),
        ("regression.json", "xgboost_json", "false"),
    ],
)
def test_a_forest_gets_what_its_file_says(tmp_path: Path, file: str, model_type: str, is_classifier: str) -> None:
    path = tmp_path / file
    if file == "regression.json":
        path.write_bytes((FORESTS / "xgboost.json").read_bytes().replace(b"binary:logistic", b"reg:squarederror"))
    elif file == "classifier.txt":
        path.write_bytes(
            (FORESTS / "model.txt").read_bytes().replace(b"objective=regression", b"objective=binary sigmoid:1")
        )
    elif file == "lightgbm.txt":
        path.write_bytes((FORESTS / "model.txt").read_bytes())
    else:
        path.write_bytes((FORESTS / file).read_bytes())
    with served_paths([path]) as (_, (model,)):
        assert model.config.splitlines() == [
            'backend: "fil"',
            f'default_model_filename: "{file}"',
            "max_batch_size: 1024",
            f'parameters {{ key: "model_type" value {{ string_value: "{model_type}" }} }}',
            f'parameters {{ key: "is_classifier" value {{ string_value: "{is_classifier}" }} }}',
        ]


def test_archives_are_a_store(tmp_path: Path) -> None:
    touch(tmp_path, "one.mar", "two.mar")
    assert archive_flags([]) == []
    flags = [f"--model-store={tmp_path}", "--models=one.mar", "--models=two.mar"]
    assert archive_flags([tmp_path / "one.mar", tmp_path / "two.mar"]) == flags
    with pytest.raises(PathError, match=r"There is no file '.*three\.mar'\."):
        archive_flags([tmp_path / "three.mar"])
    touch(tmp_path / "more", "three.mar")
    with pytest.raises(PathError, match="these are of 2: use --model-store"):
        archive_flags([tmp_path / "one.mar", tmp_path / "more" / "three.mar"])


def test_of_many_files_only_those_of_the_model_s_name_are_linked(tmp_path: Path) -> None:
    path = touch(tmp_path, *(f"other{number}" for number in range(MAX_BESIDE))) / "net.onnx"
    touch(tmp_path, "net.onnx", "net.onnx.data", "net.onnx_data", "net.bin", "network.onnx")
    with served_paths([path]) as ((repository,), _):
        linked = sorted(each.name for each in (repository / "net" / "1").iterdir())
    assert linked == ["net.bin", "net.onnx", "net.onnx.data", "net.onnx_data"]


def test_a_name_in_quotes(tmp_path: Path) -> None:
    path = touch(tmp_path, 'a"b\\.onnx') / 'a"b\\.onnx'
    with served_paths([path]) as (_, (model,)):
        assert 'default_model_filename: "a\\"b\\\\.onnx"' in model.config


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["none.onnx"], "There is no file or directory"),
        (["net.pt"], "needs a configuration: a TorchScript file does not say the shapes of its inputs"),
        (
            ["net.h5"],
            "is no model that Shoal knows by its name; known are .json, .mar, .onnx, .plan, .py, .txt, .ubj, .xml",
        ),
        (["net.json"], "is no model that Shoal knows by its name"),
        (["forest.tl"], "a forest's file does not say what its output means"),
        (["net.onnx", "net.xml"], "would be a second model 'net': rename one of the two"),
    ],
)
def test_what_cannot_be_served_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], sentence: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(touch(tmp_path / "temporary")))
    touch(tmp_path, "net.pt", "net.h5", "net.onnx", "net.xml", "forest.tl")
    (tmp_path / "net.json").write_text('{"objective": "to be no forest"}')
    with pytest.raises(PathError, match=sentence), served_paths([tmp_path / name for name in names]):
        pass
    assert list((tmp_path / "temporary").iterdir()) == []
