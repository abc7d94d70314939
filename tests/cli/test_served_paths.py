"""Paths in place of a repository: what each is served as, and what is linked for it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.served_paths import MAX_BESIDE, PathError, archive_flags, served_paths
from tests.end_to_end.command_line import SHOAL
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
        assert model == (name, path, f'backend: "{backend}"\ndefault_model_filename: "{file}"\n', "")
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


def test_a_forest_of_treelite_says_its_task(tmp_path: Path) -> None:
    path = tmp_path / "trees.tl"
    whole = bytearray((FORESTS / "checkpoint.tl").read_bytes())
    for task, is_classifier in ((0, "true"), (1, "false"), (2, "true"), (3, "false")):
        whole[26] = task
        path.write_bytes(whole)
        with served_paths([path]) as (_, (model,)):
            assert model.config.splitlines()[3:] == [
                'parameters { key: "model_type" value { string_value: "treelite_checkpoint" } }',
                f'parameters {{ key: "is_classifier" value {{ string_value: "{is_classifier}" }} }}',
            ]


def test_a_program_of_torch_export_says_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    arguments = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    rows = {"as_expr": {"expr_str": "Symbol('s77', positive=True, integer=True)", "hint": {"as_int": 2}}}
    x, y = ({"dtype": 7, "sizes": [rows, *({"as_int": size} for size in sizes)]} for sizes in ([3, 8], []))
    called = {"in_spec": json.dumps([1, {"children_spec": [arguments, keywords]}]), "forward_arg_names": ["image"]}
    user = {"arg": {"as_tensor": {"name": "x"}}}
    signature = {
        "input_specs": [{"parameter": {}}, {"user_input": user}],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}],
    }
    program: dict[str, Any] = {
        "range_constraints": {"s77": {"min_val": 0, "max_val": 64}},
        "graph_module": {
            "signature": signature,
            "graph": {"tensor_values": {"x": x, "y": y}},
            "module_call_graph": [{"fqn": "", "signature": called}],
        },
    }

    def config() -> list[str]:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net/models/model.json", json.dumps(program))
        with served_paths([path]) as (_, (model,)):
            return model.config.splitlines()

    assert config() == [
        'backend: "pytorch"',
        'default_model_filename: "net.pt2"',
        "max_batch_size: 64",
        'input { name: "image" data_type: TYPE_FP32 dims: [ 3, 8 ] }',
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }',
        "dynamic_batching { }",
    ]
    program["range_constraints"] = {"s77": {"min_val": 2, "max_val": None}}
    y["sizes"] = []
    with pytest.raises(PathError, match="'OUTPUT__0' is a scalar, which is not supported"):
        config()
    y["sizes"] = [rows]
    assert config()[2:5] == [
        "max_batch_size: 0",
        'input { name: "image" data_type: TYPE_FP32 dims: [ -1, 3, 8 ] }',
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }',
    ]
    nested = arguments | {"children_spec": [arguments]}
    called["in_spec"] = json.dumps([1, {"children_spec": [nested, keywords]}])
    with pytest.raises(PathError, match="its arguments are nested or have keywords"):
        config()
    del program["graph_module"]["signature"]
    with pytest.raises(PathError, match="its program has a form that is not known here"):
        config()


def test_a_directory_of_model_files_is_its_files(tmp_path: Path) -> None:
    nets = touch(tmp_path / "nets", "a.onnx", "b.xml", "b.bin", "README.md", "notes.txt", "setup.py")
    (nets / "c.py").write_text("import triton_python_backend_utils as pb_utils\n")
    (nets / "d.ubj").write_bytes((FORESTS / "xgboost.ubj").read_bytes())
    with served_paths([nets]) as ((repository,), models):
        assert [model.name for model in models] == ["a", "b", "c", "d"]
        assert sorted(each.name for each in repository.iterdir()) == ["a", "b", "c", "d"]
    touch(nets / "model" / "1", "model.onnx")  # a repository, then
    with served_paths([nets]) as served:
        assert served == ([nets], [])
    with served_paths([touch(tmp_path / "empty")]) as served:
        assert served == ([tmp_path / "empty"], [])


def test_archives_are_a_store(tmp_path: Path) -> None:
    touch(tmp_path, "one.mar", "two.mar")
    assert archive_flags([]) == []
    flags = [f"--model-store={tmp_path}", "--models=one.mar", "--models=two.mar"]
    assert archive_flags([tmp_path / "one.mar", tmp_path / "two.mar"]) == flags
    with pytest.raises(PathError, match=r"There is no file '.*three\.mar'\."):
        archive_flags([tmp_path / "three.mar"])
    with pytest.raises(PathError, match=r"aaa\.mar': File name too long"):
        archive_flags([tmp_path / f"{300 * 'a'}.mar"])
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


def test_a_file_of_a_version_has_its_model_s_name(tmp_path: Path) -> None:
    for path in (touch(tmp_path / "digits" / "1", "model.onnx") / "model.onnx", tmp_path / "digits" / "1"):
        with served_paths([path]) as (_, (model,)):
            assert model.name == "digits"


def test_an_archive_that_cannot_be_unpacked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/models/model.json", "{}")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # it is said to be encrypted
    path.write_bytes(data)
    with pytest.raises(PathError, match=r"it is no PyTorch archive: File .* is encrypted"), served_paths([path]):
        pass


@pytest.mark.parametrize("printed", ["", "no JSON", "[1]", "{}"])
def test_a_trial_that_ends_within_the_file_s_code_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("net/constants.pkl", b"")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{printed}'\nexit 7\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(PathError, match="a trial has failed: exit code 7"), served_paths([tmp_path / "net.pt"]):
        pass


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["none.onnx"], "There is no file or directory"),
        (["lost"], "lost' is a link to 'gone', which is not there"),
        (["lost.onnx"], "lost.onnx' is a link to 'gone.onnx', which is not there"),
        (["n" * 300], "File name too long"),
        (["net.pt"], "needs a configuration: it is no PyTorch archive"),
        (["weights.pt"], "needs a configuration: it holds weights and no model: save the model with torch.export"),
        (["net.h5"], "is not served as it is: save it as a SavedModel"),
        (["net.pkl"], "is not served as it is: a pickle is a program, which runs when it is loaded"),
        (
            ["net.bin"],
            "is no model that Shoal knows by its name; known are .json, .mar, .onnx, .plan, .pt, .pt2, .py, .skops, "
            ".tl, .txt, .ubj, .xml",
        ),
        (["net.json"], "is no model that Shoal knows by its name"),
        (["forest.tl"], "is no model that Shoal knows by its name"),
        (["net.onnx", "net.xml"], "would be a second model 'net': rename one of the two"),
    ],
)
def test_what_cannot_be_served_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], sentence: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(touch(tmp_path / "temporary")))
    touch(tmp_path, "net.pt", "net.h5", "net.pkl", "net.bin", "net.onnx", "net.xml", "forest.tl")
    (tmp_path / "lost").symlink_to("gone")
    (tmp_path / "lost.onnx").symlink_to("gone.onnx")
    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as archive:
        archive.writestr("weights/data.pkl", b"")
    (tmp_path / "net.json").write_text('{"objective": "to be no forest"}')
    with pytest.raises(PathError, match=sentence), served_paths([tmp_path / name for name in names]):
        pass
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_name_that_the_locale_cannot_spell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "größe.onnx").touch()
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "iso8859-1")
    with pytest.raises(PathError, match=r"größe\.onnx' is not ASCII, .* is iso8859-1: set LC_ALL=C\.UTF-8\.$"):
        served_paths([tmp_path / "größe.onnx"]).__enter__()


def test_repositories_are_served_where_nothing_temporary_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    for paths in ([], [SAMPLES]):
        with served_paths(paths) as served:
            assert served == (paths, [])
    with pytest.raises(PathError, match=r"no directory for temporary files .* mount one at /tmp, or name another by"):
        served_paths([SAMPLES / "digits"]).__enter__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    script = f"""
import signal
from pathlib import Path
from shoal.cli.served_paths import served_paths

signal.signal({number:d}, signal.SIG_DFL)  # under nohup it is ignored
with served_paths([Path({str(SAMPLES / "mlp")!r})]) as ((repository,), _):
    print(repository, flush=True)
    signal.raise_signal({number:d})
"""
    command = [sys.executable, "-c", script]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-number, "")
    assert Path(done.stdout.strip()).parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_ended_before_it_has_begun_leaves_nothing(tmp_path: Path) -> None:
    command = [*SHOAL, "serve", str(SAMPLES / "mlp" / "1" / "model.onnx"), "--http-port=0", "--grpc-port=0"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*command, "--allow-metrics=false"], stderr=subprocess.PIPE, env=environ) as serving:
        assert serving.stderr is not None
        assert b"is served as model 'mlp'" in serving.stderr.readline()
        assert list(tmp_path.glob("shoal-serve-*"))
        serving.terminate()
        serving.stderr.read()
    assert serving.returncode in (-signal.SIGTERM, 0)  # 0: it had begun
    assert not list(tmp_path.glob("shoal-serve-*"))


def test_signals_end_a_process_as_before_where_nothing_is_linked_any_more() -> None:
    with served_paths([SAMPLES / "simple"]):
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
