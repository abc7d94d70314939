"""The command line: which file is in force, what flags change, and the sentences of a start that is not one."""

import tempfile
from pathlib import Path

import pytest

from shoal.cli.torchserve import command
from shoal.cli.torchserve.command import _parser, resolve, torchserve
from shoal.cli.torchserve.properties import PropertiesError
from shoal.options import ServerOptions, endpoints
from shoal.supervisor.pid_file import PidFile


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the command, with a store in it, and of its temporary files."""
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def options(*argv: str, **environ: str) -> ServerOptions:
    return resolve(_parser().parse_args(argv), environ).options


def port(made: ServerOptions) -> int:
    return made.torchserve_inference_port


def properties(path: Path, number: int, *more: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"inference_address=http://127.0.0.1:{number}", "model_store=store", *more]))
    return path


def test_without_a_file_the_store_must_be_a_flag(here: Path) -> None:
    made = options("--start", "--model-store", "store", "--models", "a=b.mar", "c.mar")
    assert made.store is not None
    assert (made.store.directory, made.store.load_models) == (Path("store"), ("a=b.mar", "c.mar"))
    assert (made.allow_http, made.allow_grpc, made.allow_metrics, made.exit_on_error) == (False, False, False, False)
    assert made.torchserve.token_file == str(here / "key_file.json")
    with pytest.raises(PropertiesError, match="Missing mandatory parameter --model-store"):
        options("--start")


def test_the_file_in_force_is_the_variables_then_the_flags_then_a_snapshots_then_the_one_here(here: Path) -> None:
    by_variable, by_flag = properties(here / "v.properties", 1), properties(here / "f.properties", 2)
    properties(here / "logs/config/20260101000000000-startup.cfg", 3)
    properties(here / "logs/config/20260102000000000-shutdown.cfg", 4)
    properties(here / "elsewhere/config/20260101000000000-startup.cfg", 5)
    properties(here / "config.properties", 6)
    assert port(options("--ts-config", str(by_flag), TS_CONFIG_FILE=str(by_variable))) == 1
    assert port(options("--ts-config", str(by_flag))) == 2
    assert port(options()) == 4
    assert port(options(LOG_LOCATION="elsewhere")) == 5
    assert port(options("--ncs")) == 6
    assert port(options("--no-config-snapshots")) == 6


def test_flags_turn_tokens_off_and_the_model_api_on(here: Path) -> None:
    file = properties(here / "config.properties", 1, "disable_token_authorization=false", "enable_model_api=false")
    with_flags = options("--ts-config", str(file), "--disable-token-auth", "--enable-model-api")
    assert (with_flags.torchserve.token_file, with_flags.torchserve.enable_model_api) == ("", True)
    assert options("--ts-config", str(file), "--dt").torchserve.token_file == ""
    file = properties(here / "config.properties", 1, "disable_token_authorization=true", "enable_model_api=true")
    without = options("--ts-config", str(file))
    assert (without.torchserve.token_file, without.torchserve.enable_model_api) == ("", True)


def test_tokens_are_off_where_inference_and_management_are_one(here: Path) -> None:
    file = properties(here / "config.properties", 8085, "management_address=http://127.0.0.1:8085")
    start = resolve(_parser().parse_args(["--ts-config", str(file)]), {})
    assert start.options.torchserve.token_file == ""
    assert [said for said in start.warnings if said.startswith("tokens are off")]


def test_variables_fill_in_and_override(here: Path) -> None:
    file = properties(here / "c.properties", 1, "load_models=$$WHAT$$", "enable_envvars_config=true")
    made = options("--ts-config", str(file), WHAT="a.mar", TS_INFERENCE_ADDRESS="http://127.0.0.1:77")
    assert made.store is not None
    assert (made.store.load_models, port(made)) == (("a.mar",), 77)


_KSERVE = """
inference_address=http://0.0.0.0:8085
management_address=http://0.0.0.0:8085
metrics_address=http://0.0.0.0:8082
grpc_inference_port=7070
grpc_management_port=7071
enable_envvars_config=true
install_py_dep_per_model=true
enable_metrics_api=true
metrics_mode=prometheus
NUM_WORKERS=1
number_of_netty_threads=4
job_queue_size=10
model_store=store
model_snapshot={"name":"startup.cfg","modelCount":1,"models":{"mnist":{"1.0":{"defaultVersion":true,"marName":"mnist.mar",\
"minWorkers":1,"maxWorkers":5,"batchSize":1,"maxBatchDelay":5000,"responseTimeout":120}}}}
"""


def test_kserves_configuration_starts_as_it_is(here: Path) -> None:
    (here / "config.properties").write_text(_KSERVE)
    arguments = _parser().parse_args(["--start", "--ts-config", "config.properties"])
    start = resolve(arguments, {"TS_SERVICE_ENVELOPE": "kservev2"})
    made = start.options
    assert made.store is not None
    assert (made.store.load_models, made.store.service_envelope) == (("mnist=mnist.mar",), "kservev2")
    assert made.store.models["mnist"]["1.0"]["maxWorkers"] == 5
    listeners = [each.port for each in endpoints(made)]
    assert listeners == [8085, 8082, 7070, 7071]
    assert (made.torchserve.metrics_mode, made.torchserve.token_file) == ("prometheus", "")
    told = [said.partition(" ")[0] for said in start.warnings]
    assert told == ["tokens", "NUM_WORKERS", "number_of_netty_threads"]


def test_sagemakers_command_and_configuration_start_as_they_are(here: Path) -> None:
    (here / "sagemaker.properties").write_text(
        "enable_envvars_config=true\ndecode_input_request=false\nload_models=ALL\n"
        "inference_address=http://0.0.0.0:8080\nmanagement_address=http://0.0.0.0:8080\n"
        "default_service_handler=sagemaker_pytorch_serving_container.handler_service:handle\n"
    )
    command = "--start --model-store store --ts-config sagemaker.properties --log-config log4j2.xml"
    made = options(*command.split(), "--models", "model=/opt/ml/model")
    assert made.store is not None
    assert made.store.load_models == ("model=/opt/ml/model",)
    assert made.store.default_service_handler == "sagemaker_pytorch_serving_container.handler_service:handle"
    assert not made.store.decode_input_request
    assert made.torchserve.token_file == ""


def test_variables_of_log_files_that_are_not_written_are_named(here: Path) -> None:
    start = resolve(_parser().parse_args(["--model-store", "store"]), {"LOG_LOCATION": "l", "METRICS_LOCATION": "m"})
    sentence = "no log files are written into {}: the log goes to stdout and stderr"
    assert start.warnings == (sentence.format("LOG_LOCATION"), sentence.format("METRICS_LOCATION"))


REFUSED = [
    (["--ts-config", "gone.properties"], "--ts-config file not found: gone.properties"),
    (["--ts-config", 300 * "a"], f"'{300 * 'a'}': File name too long"),
    (["--model-store", 300 * "a"], f"'{300 * 'a'}': File name too long"),
    (["--model-store", "gone"], "--model-store directory not found: gone"),
    (["--ts-config", "variable.properties"], "Invalid Environment Variable GONE"),
    (["--ts-config", "large.properties"], "'large.properties' is larger than 1048576 bytes"),
    (["--ts-config", "taken.properties"], "The server cannot listen to"),
    (["--model-store", "store"], "key_file.json cannot be written into"),
]


@pytest.mark.parametrize(("argv", "sentence"), REFUSED)
def test_a_start_that_is_none_leaves_no_file(
    argv: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "variable.properties").write_text("model_store=$$GONE$$")
    (here / "large.properties").write_text("#" * 2_000_000)
    properties(
        here / "taken.properties", 8000, "management_address=http://0.0.0.0:8000", "disable_token_authorization=true"
    )
    (here / "key_file.json").mkdir()
    before = sorted(here.iterdir())
    monkeypatch.setattr(command, "end_tidily", lambda: None)  # this process is the tests'
    assert torchserve(["--start", *argv], environ={}) == 1
    assert sentence in capsys.readouterr().err
    assert sorted(here.iterdir()) == before


def test_version_and_stop_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert torchserve(["--version"], environ={}) == 0
    assert torchserve(["--stop"], environ={}) == 0
    assert capsys.readouterr().out == "TorchServe Version is 0.12.0\nTorchServe is not currently running.\n"


@pytest.mark.parametrize("argument", ["--start", "--stop"])
def test_without_a_directory_for_the_pid_file_it_says_so(
    argument: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    assert torchserve([argument], environ={}) == 1
    assert capsys.readouterr().err.startswith("no directory for temporary files can be written to")


def test_a_second_start_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert PidFile.take(here / ".model_server.pid") is not None
    assert torchserve(["--start", "--model-store", "store"], environ={}) == 1
    said = capsys.readouterr().out
    assert said == "TorchServe is already running, please use torchserve --stop to stop TorchServe.\n"
