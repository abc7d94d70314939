"""deploy/sagemaker/serve, run as SageMaker runs it: a real server, asked on its endpoint alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.sagemaker import SageMaker, write_ensemble, write_model
from tests.end_to_end.server import DEADLINE_S, Server

SERVE = Path(__file__).parents[2] / "deploy" / "sagemaker" / "serve"
#: Where tritonserver is installed, first on the PATH as in the image.
BIN = Path(sys.executable).parent


def environment(models: Path, **variables: str) -> dict[str, str]:
    runtime = models / ".runtime"  # its socket for local clients is not that of another test's server
    runtime.mkdir(exist_ok=True)
    own = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(runtime)}
    return {**os.environ, **own, "SM_MODEL_DIR": str(models), "SAGEMAKER_BIND_TO_PORT": "0", **variables}


@contextmanager
def started(models: Path, **variables: str) -> Iterator[tuple[Server, SageMaker]]:
    process = subprocess.Popen(
        [str(SERVE)], env=environment(models, **variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    server = Server(process)
    try:
        yield server, SageMaker(server)
        assert server.stop() == 0, server.log.decode()
    finally:
        process.kill()
        server.wait()
        assert process.stdout is not None
        process.stdout.close()


def refusal(models: Path, **variables: str) -> str:
    told = environment(models, **variables)
    done = subprocess.run([str(SERVE)], env=told, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_the_only_model_is_served(tmp_path: Path) -> None:
    write_model(tmp_path / "one")
    with started(tmp_path, SAGEMAKER_TRITON_LOG_VERBOSE="1") as (server, sagemaker):
        assert sagemaker.ask("GET", "/ping")[0] == 200
        assert sagemaker.infer("/invocations") == [1, 2]
        assert b"Started HTTPService" not in server.log


def test_of_several_models_the_named_one_is_served(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name)
    with started(tmp_path, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="two") as (server, sagemaker):
        assert sagemaker.infer("/invocations") == [1, 2]
        assert b"::two'" in server.log  # with its namespace, the repository
        assert b"::one" not in server.log


def test_many_models_come_with_requests(tmp_path: Path) -> None:
    write_ensemble(tmp_path / "archive" / "model", 2)
    with started(tmp_path, SAGEMAKER_MULTI_MODEL="true", TMPDIR=str(tmp_path)) as (_, sagemaker):
        assert sagemaker.ask("GET", "/ping")[0] == 200
        assert sagemaker.ask("POST", "/models/H1/invoke", "{}")[0] == 404
        assert sagemaker.load("H1", tmp_path / "archive" / "model") == 200
        assert sagemaker.infer("/models/H1/invoke") == [1, 2]
        assert json.loads(sagemaker.ask("GET", "/models")[2])["models"][0]["modelName"] == "H1"
        assert sagemaker.ask("DELETE", "/models/H1")[0] == 200
        assert sagemaker.ask("POST", "/models/H1/invoke", "{}")[0] == 404


@pytest.mark.parametrize(
    ("models", "variables", "sentence"),
    [
        ((), {}, "No model found in model repository"),
        ((".",), {}, "Incorrect directory structure."),
        (("one", "two"), {}, "More than 1 model directory found in model repository"),
        (
            ("one",),
            {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "two"},
            "Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME two does not exist",
        ),
    ],
)
def test_what_is_no_repository_is_refused_in_triton_s_words(
    tmp_path: Path, models: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:
    for name in models:
        write_model(tmp_path / name)
    assert f"ERROR: {sentence}" in refusal(tmp_path, **variables)
