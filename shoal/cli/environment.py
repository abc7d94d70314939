"""The environment variables that configure a server: the variables by which SageMaker and Vertex AI configure Triton,
and one of Shoal's own, for the format of the log.

Pure: the environment comes in as a mapping. Flags on the command line take precedence.
"""

from collections.abc import Mapping

#: Variable → the field of ServerOptions that has no flag.
VARIABLES = {
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "sagemaker_default_model",
    "SAGEMAKER_TRITON_INFERENCE_TYPE": "sagemaker_inference_type",
    "SAGEMAKER_TRITON_PING_MODE": "sagemaker_ping_mode",
    "AIP_PREDICT_ROUTE": "vertex_ai_predict_route",
    "AIP_HEALTH_ROUTE": "vertex_ai_health_route",
}
#: Variable → the flag whose value it sets.
_FLAGS = {"AIP_HTTP_PORT": "vertex-ai-port", "AIP_STORAGE_URI": "model-repository"}
#: Shoal's own variable for the format of a log that does not go to a terminal; its container image and unit set it.
LOG_FORMAT = "SHOAL_LOG_FORMAT"
#: The flags for a prediction container of Vertex AI, where all requests come to Vertex AI's own port.
_PREDICTION = {"allow-vertex-ai": "true", "allow-http": "false", "allow-grpc": "false"}


def implied_flags(environ: Mapping[str, str], *, is_terminal: bool = False) -> dict[str, str]:
    """Flag → value, from the environment, for flags that the command line does not have. `is_terminal`: the log goes
    to a terminal, where a person reads it."""
    flags = dict(_PREDICTION) if environ.get("AIP_MODE") == "PREDICTION" else {}
    if environ.get(LOG_FORMAT) and not is_terminal:
        flags["log-format"] = environ[LOG_FORMAT]
    return flags | {flag: environ[variable] for variable, flag in _FLAGS.items() if environ.get(variable)}


def implied_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Field of ServerOptions → value, from the environment."""
    settings = {option: environ[variable] for variable, option in VARIABLES.items() if environ.get(variable)}
    if environ.get("SAGEMAKER_MULTI_MODEL") == "true":
        settings.setdefault("sagemaker_ping_mode", "live")  # /ping succeeds without a model, or if one failed to load
    return settings
