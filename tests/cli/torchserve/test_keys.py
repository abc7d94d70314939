"""Every key of config.properties: who has the last word about its value, and what is said of values given in vain."""

import re
from pathlib import Path

import pytest

from shoal.cli.torchserve.keys import KEYS, read_values

#: All keys of TorchServe 0.12.0, from its configuration page and ConfigManager.java.
TORCHSERVE = """
    inference_address management_address metrics_address grpc_inference_address grpc_management_address
    grpc_inference_port grpc_management_port grpc_inference_max_connection_age_ms
    grpc_inference_max_connection_age_grace_ms grpc_management_max_connection_age_ms
    grpc_management_max_connection_age_grace_ms enable_grpc_ssl model_store load_models models model_snapshot
    default_workers_per_model default_response_timeout default_startup_timeout unregister_model_timeout job_queue_size
    max_request_size max_response_size number_of_gpu number_of_netty_threads netty_client_threads
    default_service_handler service_envelope decode_input_request install_py_dep_per_model blacklist_env_vars
    allowed_urls use_env_allowed_urls enable_model_api disable_token_authorization token_expiration_min
    enable_metrics_api metrics_mode metrics_config model_metrics_auto_detect disable_system_metrics
    metric_time_interval system_metrics_cmd cors_allowed_origin cors_allowed_methods cors_allowed_headers keystore
    keystore_pass keystore_type private_key_file certificate_file limit_max_image_pixels ts_open_inference_protocol
    ts_header_key_sequence_id ts_header_key_sequence_start ts_header_key_sequence_end workflow_store
    initial_worker_port initial_distribution_port debug model_server_home prefer_direct_buffer async_logging
    use_native_io io_ratio vmargs plugins_path cpp_log_config ipex_enable ipex_gpu_enable cpu_launcher_enable
    cpu_launcher_args enable_envvars_config
""".split()  # noqa: SIM905 - to be compared with a page
ON = {"enable_envvars_config": "true"}


def test_every_key_is_there() -> None:
    assert sorted(KEYS) == sorted(TORCHSERVE)


LAST_WORDS = [
    ({}, {}, {}, "job_queue_size", 100),
    ({"job_queue_size": "7"}, {}, {}, "job_queue_size", 7),
    ({"job_queue_size": " 7 "}, {}, {}, "job_queue_size", 7),
    ({"model_store": "a"}, {"model_store": "b"}, {}, "model_store", "b"),
    ({"job_queue_size": "7"}, {}, {"TS_JOB_QUEUE_SIZE": "9"}, "job_queue_size", 7),
    ({"job_queue_size": "7", **ON}, {}, {"TS_JOB_QUEUE_SIZE": "9"}, "job_queue_size", 9),
    ({"model_store": "a", **ON}, {"model_store": "b"}, {"TS_MODEL_STORE": "c"}, "model_store", "c"),
    ({"models": "{}", **ON}, {}, {"TS_MODELS": "x"}, "models", "{}"),
    (ON, {}, {"TS_TOKEN_EXPIRATION_TIME_MIN": "5", "TS_TOKEN_EXPIRATION_MIN": "6"}, "token_expiration_min", 5),
    (ON, {}, {"TS_HEADER_KEY_SEQUENCE_ID": "x"}, "ts_header_key_sequence_id", "x"),
    ({"allowed_urls": "a", **ON}, {}, {"TS_ALLOWED_URLS": "b"}, "allowed_urls", "a"),
    ({"allowed_urls": "a", "use_env_allowed_urls": "true"}, {}, {"TS_ALLOWED_URLS": "b"}, "allowed_urls", "b"),
    ({}, {}, {"TS_OPEN_INFERENCE_PROTOCOL": "oip"}, "ts_open_inference_protocol", True),
    ({"ts_open_inference_protocol": "true"}, {}, {}, "ts_open_inference_protocol", True),
    (ON, {}, {"TS_OPEN_INFERENCE_PROTOCOL": "true"}, "ts_open_inference_protocol", False),
    ({"enable_model_api": "TRUE"}, {}, {}, "enable_model_api", True),
    ({"enable_model_api": "yes"}, {}, {}, "enable_model_api", False),
    ({"disable_token_authorization": "false"}, {"disable_token_authorization": "true"}, {},
     "disable_token_authorization", True),
    ({"cors_allowed_origin": ""}, {}, {}, "cors_allowed_origin", None),
]  # fmt: skip


@pytest.mark.parametrize(("given", "flags", "environ", "key", "expected"), LAST_WORDS)
def test_who_has_the_last_word(
    given: dict[str, str], flags: dict[str, str], environ: dict[str, str], key: str, expected: object
) -> None:
    assert read_values(given, flags, environ).values[key] == expected


def test_a_value_that_is_no_number_counts_as_absent_and_is_told() -> None:
    values, warnings = read_values({"job_queue_size": "many"}, {}, {})
    assert values["job_queue_size"] == 100
    assert warnings == ("job_queue_size is 'many', which is no whole number: 100 is used",)


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.ignored])
def test_an_ignored_key_is_told_by_its_name_where_its_value_asks_for_something(key: object) -> None:
    assert isinstance(key, tuple)
    name, default = key[0], key[1]
    other = "true" if default is False else "false" if default is True else "12345"
    assert [said for said in read_values({name: other}, {}, {}).warnings if said.startswith(f"{name} is ignored: ")]
    unchanged = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
    assert read_values({name: unchanged}, {}, {}).warnings == ()


def test_a_misspelt_key_is_told_with_the_one_that_is_meant() -> None:
    (said,) = read_values({"job_queue_sise": "7"}, {}, {}).warnings
    assert said == "job_queue_sise is ignored: TorchServe has no such key; did you mean 'job_queue_size'?"


def test_the_migration_page_names_tests_that_exist() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "migrate-from-torchserve.md").read_text()
    named = re.findall(r"`(tests/[a-z0-9_/]+\.py)`", page)
    assert len(named) > 50
    assert [each for each in named if not (root / each).is_file()] == []


def test_the_migration_page_has_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "migrate-from-torchserve.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", page, re.MULTILINE))
    assert rows.keys() >= KEYS.keys()
    for key in KEYS.values():
        if key.ignored:
            assert rows[key.name] == f"ignored: {key.ignored}".replace("|", "\\|")
        else:
            assert not rows[key.name].startswith("ignored")
