"""What SageMaker, Vertex AI, the unit and the image say by environment variables."""

import pytest

from shoal.cli.environment import implied_flags, implied_settings


def test_an_environment_of_neither_says_nothing() -> None:
    environ = {"AIP_MODE": "TRAINING", "AIP_HTTP_PORT": "", "SAGEMAKER_MULTI_MODEL": "false", "HOME": "/"}
    assert (implied_flags(environ), implied_settings(environ)) == ({}, {})


def test_the_log_has_the_format_of_the_variable_where_no_terminal_is_written_to() -> None:
    environ = {"SHOAL_LOG_FORMAT": "json"}
    assert implied_flags(environ) == {"log-format": "json"}
    assert implied_flags(environ, is_terminal=True) == {}
    assert implied_flags({"SHOAL_LOG_FORMAT": ""}) == {}


def test_vertex_ai_serves_nothing_else() -> None:
    assert implied_flags({"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "9", "AIP_STORAGE_URI": "gs://b"}) == {
        "allow-vertex-ai": "true",
        "allow-http": "false",
        "allow-grpc": "false",
        "vertex-ai-port": "9",
        "model-repository": "gs://b",
    }


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({"SAGEMAKER_MULTI_MODEL": "true"}, "live"),
        ({"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_TRITON_PING_MODE": "ready"}, "ready"),
        ({"SAGEMAKER_TRITON_PING_MODE": "live"}, "live"),
    ],
)
def test_an_endpoint_of_many_models_is_asked_whether_it_lives(environ: dict[str, str], mode: str) -> None:
    assert implied_settings(environ) == {"sagemaker_ping_mode": mode}
