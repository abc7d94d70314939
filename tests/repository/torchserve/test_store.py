"""A store's registrations: what each form of archive becomes, who has the last word, and what is left of a failure."""

import functools
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.model_config.finish import finish_config
from shoal.repository.found import FoundModel
from shoal.repository.torchserve.configuration import Machine, StoreRequest
from shoal.repository.torchserve.store import TorchServeStore, default_name
from shoal.store_settings import StoreSettings
from tests.repository.torchserve.archives import HANDLER, folder, mar, tgz


@pytest.fixture
def store(tmp_path: Path) -> TorchServeStore:
    (tmp_path / "store").mkdir()
    made = TorchServeStore(StoreSettings(tmp_path / "store"), tmp_path / "slot" / "1", Machine(4, ()))
    made.clean()
    return made


def with_settings(store: TorchServeStore, **settings: Any) -> TorchServeStore:
    return replace(store, settings=replace(store.settings, **settings))


def parameters(found: FoundModel) -> dict[str, str]:
    return {key: value["string_value"] for key, value in found.config["parameters"].items()}


def entries(*directories: Path) -> set[str]:
    return {each.name for directory in directories if directory.exists() for each in directory.iterdir()}


def refusal(store: TorchServeStore, request: StoreRequest) -> str:
    with pytest.raises(ShoalError) as refused:
        store.register(request)
    return str(refused.value)


# --- forms ---


@pytest.mark.parametrize(("make", "file"), [(mar, "a.mar"), (tgz, "a.tar.gz"), (mar, "a.model"), (folder, "a")])
def test_every_form_becomes_a_model_with_a_version(
    make: Callable[..., Path], file: str, store: TorchServeStore
) -> None:
    make(store.settings.directory / file, version="2.5")
    found = store.register(StoreRequest(file))
    (version,) = found.versions.values()
    assert (found.name, found.error) == ("echo", None)
    assert (version.directory / "echo.py").read_text() == HANDLER
    config = finish_config(found.config)
    assert (config["backend"], config["max_batch_size"]) == ("torchserve", 1)
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("data", "TYPE_STRING", [1])
    ]
    assert [(each["name"], each["dims"]) for each in config["output"]] == [("prediction", [1])]
    assert config["dynamic_batching"]["default_queue_policy"]["max_queue_size"] == 100
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert parameters(found) == {
        "execution_timeout_ms": "120000", "ts_handler": "echo.py", "ts_runtime": "python", "ts_version": "2.5",
        "ts_model_url": file, "ts_batch_size": "1", "ts_max_batch_delay_ms": "100", "ts_min_workers": "0",
        "ts_max_workers": "0", "ts_response_timeout_s": "120", "ts_startup_timeout_s": "120",
        "ts_decode_input_request": "true", "ts_limit_max_image_pixels": "true", "ts_loaded_at_startup": "false",
    }  # fmt: skip


def test_a_folder_is_not_copied_and_one_that_holds_only_a_folder_is_entered(
    store: TorchServeStore, tmp_path: Path
) -> None:
    inner = folder(tmp_path / "elsewhere" / "inner")
    (version,) = store.register(StoreRequest(str(tmp_path / "elsewhere"))).versions.values()
    assert version.directory == inner
    assert entries(store.work) == set()


def test_without_a_manifest_the_request_names_model_and_handler(store: TorchServeStore, tmp_path: Path) -> None:
    (tmp_path / "store" / "plain").mkdir()
    (tmp_path / "store" / "plain" / "h.py").write_text(HANDLER)
    found = store.register(StoreRequest("plain", "mine", "h.py:handle"))
    assert (found.name, parameters(found)["ts_version"], parameters(found)["ts_handler"]) == (
        "mine",
        "1.0",
        "h.py:handle",
    )
    by_default = with_settings(store, default_service_handler="pkg.mod:handle").register(StoreRequest("plain"))
    assert (by_default.name, parameters(by_default)["ts_handler"]) == ("plain", "pkg.mod:handle")
    assert "Model handler is not defined" in refusal(store, StoreRequest("plain", "mine"))


def test_a_handler_that_streams_makes_a_decoupled_model(store: TorchServeStore) -> None:
    source = f"from ts.handler_utils.utils import send_intermediate_predict_response\n{HANDLER}"
    mar(store.settings.directory / "a.mar", {"sender.py": source})
    found = store.register(StoreRequest("a.mar"))
    assert found.config["model_transaction_policy"] == {"decoupled": True}
    assert parameters(found)["ts_streams"] == "true"


# --- who has the last word ---

ROW = {"echo": {"1.0": {"minWorkers": 3, "maxWorkers": 5, "batchSize": 4, "responseTimeout": 7}}}
YAML = "minWorkers: 2\nmaxWorkers: 6\nbatchSize: 8\nmaxBatchDelay: 30\nresponseTimeout: 9\njobQueueSize: 11\n"
WORDS: list[tuple[dict[str, Any], str, dict[str, Any], dict[str, str]]] = [
    ({}, "", {}, {"ts_min_workers": "0", "ts_batch_size": "1"}),
    ({"is_startup": True}, "", {}, {"ts_min_workers": "4", "ts_loaded_at_startup": "true"}),
    ({"is_startup": True}, "", {"default_workers_per_model": 2}, {"ts_min_workers": "2", "ts_max_workers": "2"}),
    ({}, "", {"default_workers_per_model": 2}, {"ts_min_workers": "2"}),
    ({"initial_workers": 1}, "", {"default_workers_per_model": 2}, {"ts_min_workers": "1"}),
    (
        {"is_startup": True},
        "",
        {"models": ROW},
        {"ts_min_workers": "3", "ts_max_workers": "5", "ts_batch_size": "4", "execution_timeout_ms": "7000"},
    ),
    ({}, YAML, {"models": ROW}, {"ts_min_workers": "2", "ts_max_workers": "6", "ts_batch_size": "8"}),
    ({"initial_workers": 1, "batch_size": 3}, YAML, {}, {"ts_min_workers": "2", "ts_batch_size": "3"}),
    ({"max_batch_delay": 5}, YAML, {}, {"ts_max_batch_delay_ms": "5"}),
    ({"response_timeout": 1}, YAML, {}, {"ts_response_timeout_s": "1"}),
    ({}, YAML, {}, {"ts_max_batch_delay_ms": "30", "ts_response_timeout_s": "9"}),
    ({}, "batchSize: 2", {"default_response_timeout": 33}, {"ts_response_timeout_s": "33"}),
    ({}, "startupTimeout: 5", {"default_startup_timeout": 33}, {"ts_startup_timeout_s": "5"}),
    ({}, "", {"service_envelope": "json", "decode_input_request": False}, {"ts_service_envelope": "json",
                                                                           "ts_decode_input_request": "false"}),
    ({"handler": "other.py"}, "", {}, {"ts_handler": "other.py"}),
    ({}, "deviceType: cpu\nuseVenv: true", {}, {"ts_device_type": "cpu", "ts_use_venv": "true"}),
    ({}, "asyncCommunication: true", {}, {"ts_async": "true"}),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "yaml", "settings", "expected"), WORDS)
def test_the_first_that_says_something_counts(
    request_: dict[str, Any], yaml: str, settings: dict[str, Any], expected: dict[str, str], store: TorchServeStore
) -> None:
    of_yaml: dict[str, Any] = {"files": {"model-config.yaml": yaml}, "configFile": "model-config.yaml"} if yaml else {}
    mar(store.settings.directory / "a.mar", **of_yaml)
    found = with_settings(store, **settings).register(StoreRequest("a.mar", **request_))
    assert expected.items() <= parameters(found).items()
    finish_config(found.config)


def test_queue_and_timeouts_of_the_yaml_become_queue_policies(store: TorchServeStore) -> None:
    yaml = "jobQueueSize: 11\nclientTimeoutInMills: 250"
    mar(store.settings.directory / "a.mar", {"c.yaml": yaml}, configFile="c.yaml")
    policy = store.register(StoreRequest("a.mar")).config["dynamic_batching"]["default_queue_policy"]
    assert (policy["max_queue_size"], policy["default_timeout_microseconds"]) == (11, 250_000)
    assert policy["timeout_action"] == "REJECT"


GROUPS = [
    ((), 3, "", [(3, "KIND_CPU", [])]),
    ((0, 1), 4, "", [(2, "KIND_GPU", [0]), (2, "KIND_GPU", [1])]),
    ((0, 1), 3, "", [(2, "KIND_GPU", [0]), (1, "KIND_GPU", [1])]),
    ((0, 1), 1, "", [(1, "KIND_GPU", [0])]),
    ((0, 1), 2, "deviceType: cpu", [(2, "KIND_CPU", [])]),
    ((0, 1, 2), 2, "deviceIds: [2]", [(2, "KIND_GPU", [2])]),
    ((0, 1), 2, "deviceIds: [5]", [(1, "KIND_GPU", [0]), (1, "KIND_GPU", [1])]),
    ((), 2, "deviceType: gpu", [(2, "KIND_CPU", [])]),
]


def test_settings_without_effect_are_told(store: TorchServeStore, caplog: pytest.LogCaptureFixture) -> None:
    yaml = "torchrun: {nproc-per-node: 2}\nparallelType: custom\n"
    mar(store.settings.directory / "a.mar", {"c.yaml": yaml}, configFile="c.yaml")
    store.register(StoreRequest("a.mar"))
    told = [each.partition(" of model 'echo' has no effect: ")[0] for each in caplog.messages]
    assert {"torchrun", "parallelType"} <= set(told)


TORCHRUN = [
    ("{nproc-per-node: 2, nnodes: 2}", "", (), "'nnodes' of model 'echo' must be 1"),
    ("{nproc-per-node: 0}", "", (), "'nproc-per-node' of model 'echo' must be from 1 to 64, got: 0"),
    ("{nproc-per-node: two}", "", (), "'nproc-per-node' of model 'echo' must be from 1 to 64, got: 'two'"),
    ("{nproc-per-node: 2}", "", (0, 1), "'torchrun' of model 'echo' needs 'deviceType: cpu'"),
    ("{nproc-per-node: 2}", "sequenceBatching: true", (), "'torchrun' and 'sequenceBatching' of model 'echo'"),
    ("{nproc-per-node: 2}", "deviceType: cpu", (0, 1), ""),
    ("{nproc-per-node: 2}", "", (), ""),
    ("{nproc-per-node: 1, nnodes: 3}", "", (0,), ""),
]


@pytest.mark.parametrize(("torchrun", "more", "gpus", "sentence"), TORCHRUN)
def test_several_processes_of_a_handler_are_had_on_the_cpu_of_one_machine(
    torchrun: str, more: str, gpus: tuple[int, ...], sentence: str, store: TorchServeStore
) -> None:
    yaml = f"parallelType: tp\ntorchrun: {torchrun}\n{more}\n"
    mar(store.settings.directory / "a.mar", {"c.yaml": yaml}, configFile="c.yaml")
    here = replace(store, machine=Machine(2, gpus))
    if sentence:
        assert refusal(here, StoreRequest("a.mar")).startswith(f"ts:400:InvalidModelException:{sentence}")
        assert entries(store.work) == set()
    else:
        assert parameters(here.register(StoreRequest("a.mar")))["ts_parallel_type"] == "tp"


def test_a_snapshot_counts_before_what_the_archive_says(store: TorchServeStore) -> None:
    yaml = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 2\n"
    mar(store.settings.directory / "a.mar", {"c.yaml": yaml, "other.py": ""}, configFile="c.yaml")
    row = {"minWorkers": 3, "maxWorkers": 4, "batchSize": 8, "handler": "other.py"}
    for is_snapshot, expected in ((False, ("1", "1", "2")), (True, ("3", "4", "8"))):
        settings = replace(store.settings, models={"echo": {"1.0": row}}, models_are_snapshots=is_snapshot)
        config = replace(store, settings=settings).register(StoreRequest("a.mar", is_startup=True)).config
        said = [config["parameters"][f"ts_{name}"] for name in ("min_workers", "max_workers", "batch_size")]
        assert tuple(each["string_value"] for each in said) == expected
        assert config["parameters"]["ts_handler"]["string_value"] == "other.py"


SEQUENCES = [
    ("sequenceBatching: true\n", (1, False, False)),
    ("sequenceBatching: true\nmaxNumSequence: 5\nminWorkers: 2\nmaxWorkers: 2\n", (3, False, False)),
    ("continuousBatching: true\nbatchSize: 8\n", (8, True, True)),
    ("sequenceBatching: true\ncontinuousBatching: true\nbatchSize: 8\nmaxNumSequence: 4\n", (4, True, True)),
]


@pytest.mark.parametrize(("yaml", "expected"), SEQUENCES)
def test_sequences_and_continuous_batching_are_the_sequence_batchers(
    yaml: str, expected: tuple[int, bool, bool], store: TorchServeStore
) -> None:
    mar(store.settings.directory / "a.mar", {"c.yaml": yaml}, configFile="c.yaml")
    config = store.register(StoreRequest("a.mar", initial_workers=1)).config
    batching = config["sequence_batching"]
    assert "dynamic_batching" not in config
    assert expected == (
        batching["oldest"]["max_candidate_sequences"],
        batching["iterative_sequence"],
        config["model_transaction_policy"]["decoupled"],
    )
    assert config["parameters"]["ts_job_queue_size"]["string_value"] == "100"


@pytest.mark.parametrize(("gpus", "workers", "yaml", "expected"), GROUPS)
def test_workers_are_spread_over_the_gpus(
    gpus: tuple[int, ...], workers: int, yaml: str, expected: list[Any], store: TorchServeStore
) -> None:
    mar(store.settings.directory / "a.mar", {"c.yaml": yaml}, configFile="c.yaml")
    found = replace(store, machine=Machine(4, gpus)).register(StoreRequest("a.mar", initial_workers=workers))
    assert [(each["count"], each["kind"], each["gpus"]) for each in found.config["instance_group"]] == expected


# --- start ---


def test_all_takes_archives_and_folders_and_one_that_fails_leaves_the_others(store: TorchServeStore) -> None:
    directory = store.settings.directory
    mar(directory / "a.mar")
    tgz(directory / "b.tar.gz", name="b")
    folder(directory / "c", name=None)
    mar(directory / ".hidden.mar")
    (directory / "broken.mar").write_bytes(b"PK no")
    (directory / "notes.txt").write_text("no model")
    found = list(with_settings(store, load_models=("all",)).load_at_start())
    assert [(each.name, each.error is None) for each in found] == [
        ("echo", True),
        ("b", True),
        ("broken", False),
        ("c", True),
    ]
    assert "Archive 'broken.mar' is refused: it is damaged" in str(found[2].error)
    assert len(entries(store.work)) == 2


@pytest.mark.parametrize("word", ["all", "ALL"])
def test_all_is_a_word_in_any_case(word: str, store: TorchServeStore) -> None:
    mar(store.settings.directory / "a.mar")
    assert [each.name for each in with_settings(store, load_models=(word,)).load_at_start()] == ["echo"]


def test_load_models_gives_names(store: TorchServeStore) -> None:
    mar(store.settings.directory / "a.mar")
    wanted = ("a.mar", "other=a.mar", "gone.mar")
    found = list(with_settings(store, load_models=wanted).load_at_start())
    assert [(each.name, each.error is None) for each in found] == [("echo", True), ("other", True), ("gone", False)]
    assert list(store.load_at_start()) == []


@pytest.mark.parametrize(
    ("url", "name"),
    [("a-b.c.mar", "a_b_c"), ("x/y.tar.gz", "y"), ("folder", "folder"), ("http://host/m.mar", "m"), ("/a/b/", "b")],
)
def test_a_name_from_a_file(url: str, name: str) -> None:
    assert default_name(url) == name


def test_what_an_earlier_server_has_left_is_removed(store: TorchServeStore) -> None:
    (store.work.parent / "77" / "rest").mkdir(parents=True)
    (store.work.parent / "lock").touch()
    store.clean()
    assert entries(store.work.parent) == {"1", "lock"}


# --- refusals ---

REFUSED = [
    ("", "ts:404:ModelNotFoundException:empty url"),
    ("none.mar", "ts:404:ModelNotFoundException:Model not found at: none.mar"),
    ("../a.mar", "ts:404:ModelNotFoundException:Relative path is not allowed in url: ../a.mar"),
    ("sub/a.mar", "ts:404:ModelNotFoundException:Model not found at: sub/a.mar"),
    ("a\0.mar", "ts:404:ModelNotFoundException:Model not found at: a\0.mar"),
    ("/etc/passwd", "ts:400:InvalidModelException:Model name is not defined. Archive 'passwd' is refused: it is"),
    ("ftp://host/a.mar", "ts:404:ModelNotFoundException:Given URL ftp://host/a.mar does not match any allowed URL(s)"),
    (
        "ftp://u:secret@host/a.mar",
        "ts:404:ModelNotFoundException:Given URL ftp://u:***@host/a.mar does not match any allowed URL(s)",
    ),
    (
        "http://u:secret@host/a.mar",
        "ts:400:DownloadArchiveException:Failed to download archive from: http://u:***@host/a.mar (no user's name and",
    ),
    (
        "http://token@host/a.mar",
        "ts:400:DownloadArchiveException:Failed to download archive from: http://***@host/a.mar (no user's name and",
    ),
    ("u:secret@host/a.mar", "ts:404:ModelNotFoundException:Model not found at: u:***@host/a.mar"),
    ("token@host/a.mar", "ts:404:ModelNotFoundException:Model not found at: ***@host/a.mar"),
    ("broken.mar", "ts:400:InvalidModelException:Model name is not defined. Archive 'broken.mar' is refused"),
    ("nameless.mar", "ts:400:InvalidModelException:Model name is not defined. Neither"),
    ("no_handler.mar", "ts:400:InvalidModelException:Model handler is not defined"),
    ("lacks.mar", "ts:400:InvalidModelException:MAR-INF/MANIFEST.json of model 'echo' names 'w.pt', which the archive"),
    ("bad_yaml.mar", "ts:400:InvalidModelException:Failed to parse model config yaml file. 'c.yaml' is no mapping"),
    ("slash.mar", "ts:400:InvalidModelException:Model name is not defined. 'a/b' is no name of a model"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "sentence"), REFUSED)
def test_a_refusal_has_torchserves_words_and_leaves_nothing(url: str, sentence: str, store: TorchServeStore) -> None:
    directory = store.settings.directory
    (directory / "broken.mar").write_bytes(b"PK no")
    mar(directory / "nameless.mar", name=None)
    mar(directory / "no_handler.mar", handler=None)
    mar(directory / "lacks.mar", serializedFile="w.pt")
    mar(directory / "bad_yaml.mar", {"c.yaml": "- 1"}, configFile="c.yaml")
    mar(directory / "slash.mar", name="a/b")
    before = entries(directory)
    assert refusal(store, StoreRequest(url)).startswith(sentence)
    assert entries(store.work) == set()
    assert entries(directory) == before


def test_a_runtime_that_is_not_python_is_refused(store: TorchServeStore) -> None:
    mar(store.settings.directory / "a.mar")
    sentence = "ts:400:BadRequestException:Invalid RuntimeType value: LSP"
    assert refusal(store, StoreRequest("a.mar", runtime="LSP")) == sentence


# --- URLs ---


def test_names_that_no_file_can_have_are_refused_and_leave_nothing(store: TorchServeStore) -> None:
    long = "a" * 300
    assert refusal(store, StoreRequest(f"/{long}")).startswith("ts:404:ModelNotFoundException:Model not found at: /aaa")
    assert store.look_again(StoreRequest(f"/{long}"), 1) is None
    mar(store.settings.directory / "a.mar", serializedFile=long)
    assert "Archive 'a.mar' cannot be read: File name too long" in refusal(store, StoreRequest("a.mar"))
    assert entries(store.settings.directory, store.work) == {"a.mar"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server's address, and its directory."""
    (tmp_path / "web").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/to/"))
                self.end_headers()
            elif self.path.startswith("/short/"):
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"PK")  # and the connection ends
            else:
                super().do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            pass

    handler = functools.partial(Handler, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", tmp_path / "web"
        server.shutdown()
        thread.join()


def test_urls_are_downloaded_into_the_store_and_withdrawn_from_it(
    served: tuple[str, Path], store: TorchServeStore, tmp_path: Path
) -> None:
    url, web = served
    mar(web / "a.mar")
    mar(tmp_path / "b.mar", name="b")
    for address, name in ((f"{url}/a.mar", "a.mar"), ((tmp_path / "b.mar").as_uri(), "b.mar")):
        found = store.register(StoreRequest(address))
        assert found.origin == name
        assert entries(store.settings.directory) == {name}
        again = refusal(store, StoreRequest(address))
        assert again == f"ts:500:InternalServerException:Model file already exists {name}"
        store.withdraw(found.directory, found.origin)
        assert entries(store.settings.directory, store.work) == set()
    assert (tmp_path / "b.mar").exists()


def test_a_download_that_fails_or_is_not_allowed_leaves_nothing(
    served: tuple[str, Path], store: TorchServeStore
) -> None:
    url, web = served
    (web / "broken.mar").write_bytes(b"PK no")
    mar(web / "a.mar")
    failed = "ts:400:DownloadArchiveException:Failed to download archive from: "
    assert refusal(store, StoreRequest(f"{url}/none.mar")).startswith(f"{failed}{url}/none.mar")
    assert refusal(store, StoreRequest("http://127.0.0.1:1/a.mar")).startswith(failed)
    cut_short = refusal(store, StoreRequest(f"{url}/short/a.mar"))
    assert cut_short == f"{failed}{url}/short/a.mar (the connection ended 998 bytes before the archive's end)"
    assert refusal(store, StoreRequest(f"{url}/")).startswith(failed)
    assert refusal(store, StoreRequest("file:///etc")).startswith(failed)
    assert refusal(store, StoreRequest("file://elsewhere/a.mar")).startswith(failed)
    for address in ("http://[::1/a.mar", "http://a\u2100b/a.mar"):  # hosts that Python's parser of URLs raises for
        assert refusal(store, StoreRequest(address)).startswith(f"{failed}{address} (it is no http, https or file URL")
    assert refusal(store, StoreRequest(f"{url}/to/file:///etc/passwd")).startswith(failed)
    assert "is refused: it is damaged" in refusal(store, StoreRequest(f"{url}/broken.mar"))
    only = with_settings(store, allowed_urls=(f"{url}/to/.*", f"{url}/b.*"))
    assert "does not match any allowed URL(s)" in refusal(only, StoreRequest(f"{url}/a.mar"))
    assert "does not match any allowed URL" in refusal(only, StoreRequest(f"{url}/to/{url}/a.mar"))
    assert "does not match any allowed URL(s)" in refusal(only, StoreRequest("/etc"))
    assert entries(store.settings.directory, store.work) == set()
    assert store.register(StoreRequest(f"{url}/to/{url}/a.mar")).name == "echo"


def test_a_download_ends_that_finds_the_disk_filled_by_others(
    store: TorchServeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.mar").write_bytes(bytes(4 << 20))
    left = iter([1 << 20, *[1] * 8])
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=next(left), f_frsize=4096))
    refused = refusal(store, StoreRequest((tmp_path / "large.mar").as_uri()))
    assert refused.endswith("large.mar (the disk of the model store is full)")
    assert entries(store.settings.directory) == set()
