"""Models of scikit-learn in skops's format: what `shoal init` and `serve` make of a file, and what they refuse."""

import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from skops import io

from shoal.cli import main, skops_files
from shoal.cli.served_paths import PathError, served_paths
from shoal.cli.torch_files import NoShapesError
from shoal.supervisor.memory import available_memory
from shoal.workers.backends import skops_trial

DRAW = np.random.default_rng(1)
ROWS = DRAW.normal(size=(60, 3))
KINDS = np.array(["low", "middle", "high"])[np.digitize(ROWS[:, 0], [-0.4, 0.4])]


def written(directory: Path, model: Any, name: str = "net.skops") -> Path:
    """The path of a file with the model, trained or not."""
    directory.mkdir(exist_ok=True)
    io.dump(model, directory / name)
    return directory / name


def double(rows: Any) -> Any:
    """A function of a stranger's program."""
    return 2 * rows


def run(capsys: pytest.CaptureFixture[str], directory: Path, rows: Any) -> dict[str, Any]:
    """The outputs of a model for these rows, by name."""
    assert main(["run", str(directory), f"X={json.dumps(rows.tolist())}", "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in outputs}


def test_a_classifier_answers_as_in_scikit_learn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, KINDS)
    directory = tmp_path / "models" / "net"
    assert main(["init", str(directory), "--from", str(written(tmp_path, model))]) == 0
    assert main(["check", "--strict", str(directory)]) == 0
    assert sorted(each.name for each in (directory / "1").iterdir()) == ["model.py", "model.skops"]
    capsys.readouterr()
    answer = run(capsys, directory, ROWS[:5])
    assert answer["label"].tolist() == [[each] for each in model.predict(ROWS[:5])]
    np.testing.assert_array_equal(answer["probabilities"], model.predict_proba(ROWS[:5]))


def test_files_are_served_as_what_they_predict_and_read_by_one_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the files stands for them. One model refuses zeros, and is asked with ones."""
    positive = 1 + np.abs(ROWS)
    logarithm = make_pipeline(FunctionTransformer(np.log), LinearRegression()).fit(positive, positive[:, 1])
    models = {
        "clusters": (KMeans(2, n_init=1, random_state=1).fit(ROWS), ROWS, "INT64", "1"),
        "logarithm": (logarithm, positive, "FP64", "1"),
        "numbers": (LinearRegression().fit(ROWS, ROWS[:, 1]), ROWS, "FP64", "1"),
        "several": (LinearRegression().fit(ROWS, ROWS[:, 1:]), ROWS, "FP64", "2"),
    }
    nets = tmp_path / "nets"
    for name, (model, *_) in models.items():
        written(nets, model, f"{name}.skops")
    for name in ("model.py", "pandas.py", "requirements.txt"):
        (nets / name).write_text("raise SystemExit('a program that lies beside it')")
    trials, start = list[list[str]](), subprocess.run

    def run_counted(command: list[str], **more: Any) -> Any:
        trials.append(command)
        return start(command, **more)

    monkeypatch.setattr(subprocess, "run", run_counted)
    with served_paths([nets]) as ((repository,), linked):
        assert len(trials) == 1
        for each, (name, (model, rows, datatype, dims)) in zip(linked, models.items(), strict=True):
            assert each.name == name
            assert each.config.splitlines() == [
                'backend: "python"',
                "max_batch_size: 1024",
                'input { name: "X" data_type: TYPE_FP64 dims: [ 3 ] }',
                f'output {{ name: "label" data_type: TYPE_{datatype} dims: [ {dims} ] }}',
                "dynamic_batching { }",
            ]
            assert {file.name for file in (repository / name / "1").iterdir()} == {"model.py", f"{name}.skops"}
            found = run(capsys, repository / name, rows[:4])["label"]
            np.testing.assert_array_equal(found, model.predict(rows[:4]).reshape(4, -1))


def said(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Why a trial refuses a file: as its process does it, in this one, which has imported scikit-learn."""
    monkeypatch.setattr(skops_trial, "bound_memory", lambda _nbytes: None)  # this process is to go on
    skops_trial.main(["0", str(path)])
    return str(json.loads(capsys.readouterr().out)["error"])


def reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, *names: str) -> list[str]:
    """Why files of these names are refused by an interpreter that is a script, which does `ends` at each named bad."""
    answer = json.dumps({"skops": "1", "inputs": [["X", "FP64", [2, 3]]], "outputs": [["label", "FP64", [2]]]})
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
shift 3
for file; do
    case $file in *bad*) {ends} ;; esac
    printf '%s\\n' 'a line of scikit-learn' '{answer}'
done
"""
    )
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    found = skops_files.described([tmp_path / f"{name}.skops" for name in names])
    return [str(each) if isinstance(each, NoShapesError) else "" for each in found.values()]


def test_a_file_that_ends_a_trial_leaves_the_others_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reasons(tmp_path, monkeypatch, "exit 7", "bad1", "good", "bad2")
    assert found == ["exit code 7", "", "exit code 7"]


def test_a_file_that_is_never_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skops_files, "_TIMEOUT_S", 0.01)
    assert reasons(tmp_path, monkeypatch, "exec sleep 60", "bad") == ["it was not read within 0.01 s"]


def test_a_file_with_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_pipeline(FunctionTransformer(double), LinearRegression()).fit(ROWS, ROWS[:, 1])
    sentence = r"it has types that skops does not trust: .*test_skops_files\.double"
    assert re.fullmatch(sentence, said(written(tmp_path, model), monkeypatch, capsys))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a cat", "a dog"], [0, 1]),
         "it does not predict from a number of features"),
        (StandardScaler().fit(ROWS), "it does not predict from a number of features"),
        (LinearRegression(), "it does not predict from a number of features"),
        (None, "BadZipFile: File is not a zip file"),
    ],
    ids=["texts", "scaler", "untrained", "damaged"],
)  # fmt: skip
def test_what_is_no_model_of_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Any, sentence: str
) -> None:
    path = tmp_path / "net.skops"
    path.write_text("no archive")
    if model is not None:
        written(tmp_path, model)
    assert said(path, monkeypatch, capsys) == sentence


def test_a_small_file_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.skops"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("schema.json", bytes(256 << 20))
    assert path.stat().st_size < 2 << 20
    monkeypatch.setattr(available_memory, "available_nbytes", lambda: 64 << 20)
    with (
        pytest.raises(PathError, match="is not served as it is: it takes more memory than this machine has left"),
        served_paths([path]),
    ):
        pass


def test_an_old_version_of_skops_reads_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, LinearRegression().fit(ROWS, ROWS[:, 1]))
    (tmp_path / "skops-0.14.0.dist-info").mkdir()
    (tmp_path / "skops-0.14.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: skops\nVersion: 0.14.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "skops 0.14.0 trusts trees" in said(path, monkeypatch, capsys)


def test_the_extra_installs_a_version_that_is_trusted() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert set(re.findall(r"skops>=([0-9.]+)", text)) == {".".join(map(str, skops_trial.LEAST_SKOPS))}


def test_an_interpreter_without_skops_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, LinearRegression().fit(ROWS, ROWS[:, 1]))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'skops'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(PathError, match=r"pip install 'shoal\[skops\]'"), served_paths([path]):
        pass
