"""From values to options: addresses, rows of `models=`, snapshots, and what the server does not start with."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.torchserve.configuration import Address, read_address, settings_of_options, store_settings
from shoal.cli.torchserve.keys import read_values
from shoal.cli.torchserve.properties import PropertiesError
from shoal.options import ServerOptions, check, endpoints, https_endpoints, torchserve_grpc_apis
from shoal.store_settings import StoreSettings


def values(**given: str) -> dict[str, Any]:
    return dict(read_values({"model_store": "/store", **given}, {}, {}).values)


def store(warnings: list[str] | None = None, **given: str) -> StoreSettings:
    return store_settings(values(**given), [] if warnings is None else warnings)


ADDRESSES = [
    ("http://127.0.0.1:8080", Address("127.0.0.1", 8080)),
    ("http://0.0.0.0:8085", Address("0.0.0.0", 8085)),
    ("http://localhost", Address("localhost", 81)),
    ("http://[::1]:90/", Address("::1", 90)),
    ("http://:8080", None),
    ("127.0.0.1:8080", None),
    ("http://host:port", None),
    ("http://host:80/path", None),
    ("https://127.0.0.1:8443", Address("127.0.0.1", 8443, True)),
    ("https://localhost", Address("localhost", 444, True)),
    ("unix:/tmp/socket", Address("unix:/tmp/socket", 0)),
    ("http://[::1:8080", None),
    ("unix:socket", None),
    ("unix:/" + "x" * 107, None),
    ("", None),
]


@pytest.mark.parametrize(("text", "expected"), ADDRESSES)
def test_addresses(text: str, expected: Address | None) -> None:
    if expected is not None:
        assert read_address("inference_address", text, 81, 444) == expected
        return
    with pytest.raises(PropertiesError, match=r"^inference_address is "):
        read_address("inference_address", text, 81, 444)


def test_defaults_are_torchserves() -> None:
    fields, warnings = settings_of_options(values(), "keys")
    options = ServerOptions(**fields)
    assert warnings == []
    assert options.store == StoreSettings(Path("/store"))
    assert {each.name: each.port for each in endpoints(options) if each.name.startswith("torchserve")} == {
        "torchserve-inference": 8080, "torchserve-management": 8081, "torchserve-metrics": 8082,
        "torchserve-grpc-inference": 7070, "torchserve-grpc-management": 7071,
    }  # fmt: skip
    assert (options.torchserve.token_file, options.torchserve.enable_model_api) == ("keys", False)


def test_one_address_is_one_listener() -> None:
    one = "http://0.0.0.0:8085"
    fields, _ = settings_of_options(values(inference_address=one, management_address=one), "")
    options = ServerOptions(**fields)
    check(options)
    assert [each.port for each in endpoints(options) if each.name.startswith("torchserve")] == [8085, 8082, 7070, 7071]


def test_grpc_has_one_listener_for_one_address_and_tls_with_its_files() -> None:
    files = {"certificate_file": "c.pem", "private_key_file": "k.pem"}
    fields, _ = settings_of_options(values(grpc_management_port="7070", enable_grpc_ssl="true", **files), "")
    options = ServerOptions(**fields)
    assert torchserve_grpc_apis(options) == {"torchserve-grpc-inference": ("inference", "management")}
    assert (options.has_grpc_tls, options.grpc_tls) == (True, ("c.pem", "k.pem", "", False))


def test_an_address_with_https_has_tls_with_its_files() -> None:
    files = {"certificate_file": "c.pem", "private_key_file": "k.pem"}
    both = {"inference_address": "https://0.0.0.0:8443", "management_address": "https://0.0.0.0:8443"}
    fields, _ = settings_of_options(values(**both, **files), "")
    options = ServerOptions(**fields)
    assert https_endpoints(options) == ("torchserve-inference",)
    assert options.tls["http"] == ("c.pem", "k.pem", "", False)


def test_every_setting_of_the_store_is_read() -> None:
    made = store(
        load_models="a.mar,,b=c.mar",
        allowed_urls="http://one/.*,file://.*",
        default_workers_per_model="3",
        default_response_timeout="4",
        default_startup_timeout="5",
        job_queue_size="6",
        default_service_handler="h.py:f",
        service_envelope="kserve",
        decode_input_request="false",
        install_py_dep_per_model="true",
        limit_max_image_pixels="false",
        number_of_gpu="2",
        blacklist_env_vars=".*SECRET.*",
        ts_header_key_sequence_id="my-id",
    )
    assert made == StoreSettings(
        Path("/store"),
        ("a.mar", "b=c.mar"),
        ("http://one/.*", "file://.*"),
        {},
        default_workers_per_model=3,
        default_response_timeout=4,
        default_startup_timeout=5,
        job_queue_size=6,
        default_service_handler="h.py:f",
        service_envelope="kserve",
        decode_input_request=False,
        install_py_dep_per_model=True,
        limit_max_image_pixels=False,
        number_of_gpu=2,
        environment={"ts_blacklist_env_vars": ".*SECRET.*", "ts_header_key_sequence_id": "my-id"},
    )
    assert StoreSettings.from_fields(made.fields) == made


def test_debug_means_one_worker_and_no_timeouts() -> None:
    made = store(debug="true", default_workers_per_model="4")
    assert (made.default_workers_per_model, made.default_response_timeout) == (1, 3600)


def test_rows_of_models_keep_positive_numbers_and_load_nothing() -> None:
    rows = {
        "m": {"1.0": {"minWorkers": 2, "batchSize": 0, "responseTimeout": "9", "marName": "m.mar", "gpu": 1}},
        "n": 1,
    }
    warnings: list[str] = []
    made = store(warnings, models=json.dumps(rows))
    assert (made.models, made.load_models) == ({"m": {"1.0": {"minWorkers": 2}}}, ())
    assert [said.partition(" ")[0] for said in warnings] == ["batchSize", "responseTimeout"]


def test_a_snapshot_loads_its_models_and_no_others() -> None:
    """As KServe writes it."""
    snapshot = {
        "name": "startup.cfg",
        "modelCount": 1,
        "models": {
            "mnist": {
                "1.0": {
                    "defaultVersion": True, "marName": "mnist.mar", "minWorkers": 1, "maxWorkers": 5, "batchSize": 1,
                    "maxBatchDelay": 10, "responseTimeout": 120,
                }
            },
            "lost": {"2.0": {"minWorkers": 1}},
        },
    }  # fmt: skip
    warnings: list[str] = []
    made = store(warnings, model_snapshot=json.dumps(snapshot), load_models="all", models='{"other": {}}')
    assert made.load_models == ("mnist=mnist.mar",)
    assert made.models["mnist"]["1.0"] == {
        "defaultVersion": True, "minWorkers": 1, "maxWorkers": 5, "batchSize": 1, "maxBatchDelay": 10,
        "responseTimeout": 120,
    }  # fmt: skip
    assert warnings == ["model_snapshot of model 'lost' version '2.0' has no marName: it is not loaded"]


def test_the_warning_about_a_number_says_the_least_that_is_heeded() -> None:
    row = {"marName": "m.mar", "minWorkers": -1, "batchSize": 0}
    warnings: list[str] = []
    store(warnings, model_snapshot=json.dumps({"models": {"m": {"1.0": row}}}))
    where = "of model_snapshot of model 'm' version '1.0' is ignored: it is no whole number"
    assert warnings == [f"minWorkers {where} from 0 on", f"batchSize {where} from 1 on"]


UNUSABLE = [
    ({"models": "{'a': 1}"}, "models is no JSON"),
    ({"models": '{"m": {"1.0": {"minWorkers": 1,}}}'}, "models is no JSON"),
    ({"models": "[]"}, "models is no JSON object"),
    ({"model_snapshot": "[" * 100_000}, "model_snapshot is no JSON"),
    ({"model_snapshot": '{"models": 1}'}, "model_snapshot is no JSON object"),
    ({"allowed_urls": "http://(.*"}, "allowed_urls has"),
    ({"enable_grpc_ssl": "true"}, "enable_grpc_ssl=true needs certificate_file and private_key_file"),
    ({"model_store": ""}, "Missing mandatory parameter --model-store"),
    ({"metrics_address": "ftp://127.0.0.1:1"}, "metrics_address is"),
    ({"metrics_address": "https://127.0.0.1:1", "certificate_file": "c"}, "metrics_address=https://127.0.0.1:1 needs"),
    ({"inference_address": "https://127.0.0.1", "keystore": "k.p12"}, "a keystore is not read"),
]


@pytest.mark.parametrize(("given", "sentence"), UNUSABLE)
def test_what_the_server_cannot_start_with(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(PropertiesError, match=sentence):
        settings_of_options(values(**given), "")


def test_an_unknown_metrics_mode_is_told() -> None:
    fields, warnings = settings_of_options(values(metrics_mode="loud"), "")
    assert fields["torchserve"].metrics_mode == "log"
    assert warnings == ["metrics_mode is 'loud', must be one of log, prometheus, legacy: log is used"]
