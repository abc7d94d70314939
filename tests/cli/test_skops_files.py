"""Models of scikit-learn in skops's format: what `shoal init` and `serve` make of a file, and what they refuse."""

import json
import re
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

from shoal.cli import main
from shoal.cli.served_paths import PathError, served_paths
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


@pytest.mark.parametrize(
    ("model", "datatype", "dims"),
    [
        (LinearRegression().fit(ROWS, ROWS[:, 1]), "FP64", "1"),
        (LinearRegression().fit(ROWS, ROWS[:, 1:]), "FP64", "2"),
        (KMeans(2, n_init=1, random_state=1).fit(ROWS), "INT64", "1"),
    ],
    ids=["numbers", "several", "clusters"],
)
def test_a_file_is_served_as_what_it_predicts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Any, datatype: str, dims: str
) -> None:
    path = written(tmp_path / "nets", model)
    for name in ("model.py", "pandas.py", "requirements.txt"):
        (tmp_path / "nets" / name).write_text("raise SystemExit('a program that lies beside it')")
    with served_paths([path]) as ((repository,), (linked,)):
        assert linked.config.splitlines() == [
            'backend: "python"',
            "max_batch_size: 1024",
            'input { name: "X" data_type: TYPE_FP64 dims: [ 3 ] }',
            f'output {{ name: "label" data_type: TYPE_{datatype} dims: [ {dims} ] }}',
            "dynamic_batching { }",
        ]
        assert sorted(each.name for each in (repository / "net" / "1").iterdir()) == ["model.py", "net.skops"]
        found = run(capsys, repository / "net", ROWS[:4])["label"]
    np.testing.assert_array_equal(found, model.predict(ROWS[:4]).reshape(4, -1))


def test_a_directory_with_such_a_file_stands_for_it(tmp_path: Path) -> None:
    written(tmp_path, LinearRegression().fit(ROWS, ROWS[:, 1]))
    with served_paths([tmp_path]) as (_, models):
        assert [each.name for each in models] == ["net"]


def test_a_file_with_code_is_refused(tmp_path: Path) -> None:
    model = make_pipeline(FunctionTransformer(double), LinearRegression()).fit(ROWS, ROWS[:, 1])
    sentence = r"is not served as it is: it has types that skops does not trust: .*test_skops_files\.double"
    with pytest.raises(PathError, match=sentence), served_paths([written(tmp_path, model)]):
        pass


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
    """As its process does it, in this one, which has imported scikit-learn."""
    path = tmp_path / "net.skops"
    path.write_text("no archive")
    if model is not None:
        written(tmp_path, model)
    monkeypatch.setattr(skops_trial, "bound_memory", lambda _nbytes: None)  # this process is to go on
    skops_trial.main([str(path), "0"])
    assert json.loads(capsys.readouterr().out) == {"error": sentence}


def test_a_model_that_refuses_zeros_is_asked_with_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = 1 + np.abs(ROWS)
    model = make_pipeline(FunctionTransformer(np.log), LinearRegression()).fit(rows, rows[:, 1])
    with served_paths([written(tmp_path, model)]) as ((repository,), _):
        found = run(capsys, repository / "net", rows[:4])["label"]
    np.testing.assert_array_equal(found, model.predict(rows[:4]).reshape(4, 1))


def test_a_small_file_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.skops"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("schema.json", bytes(256 << 20))
    assert path.stat().st_size < 2 << 20
    monkeypatch.setattr(available_memory, "available_nbytes", lambda: 64 << 20)
    with pytest.raises(PathError, match="it takes more memory than this machine has left"), served_paths([path]):
        pass


def test_an_old_version_of_skops_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, LinearRegression().fit(ROWS, ROWS[:, 1]))
    (tmp_path / "skops-0.14.0.dist-info").mkdir()
    (tmp_path / "skops-0.14.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: skops\nVersion: 0.14.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}")
    with pytest.raises(PathError, match=r"skops 0\.14\.0 trusts trees"), served_paths([path]):
        pass


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
