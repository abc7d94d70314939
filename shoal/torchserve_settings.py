"""Settings of TorchServe's listeners for front ends, by the names of TorchServe's config.properties. Made by the
supervisor."""

from collections.abc import Sequence
from dataclasses import dataclass

#: The version of TorchServe that is named in answers of its protocol.
TORCHSERVE_VERSION = "0.12.0"
#: The values of `metrics_mode`, TorchServe's.
METRICS_MODES = ("log", "prometheus", "legacy")


@dataclass(frozen=True, slots=True)
class TorchServeSettings:
    """Properties that TorchServe's protocol depends on; all defaults are TorchServe's, except for `token_file`."""

    max_request_size: int = 6_553_500  # bytes of a body; a larger one is refused with 413 and an empty body
    enable_model_api: bool = False  # clients may register and unregister models
    metrics_mode: str = "log"  # one of METRICS_MODES: what GET /metrics has
    enable_metrics_api: bool = True  # False: nothing listens for metrics
    system_metrics: bool = True  # in mode `prometheus`, GET /metrics has figures of the machine
    server_metrics: Sequence[str] | None = None  # by metrics.yaml: the server's families of GET /metrics; None: all
    handler_metrics: Sequence[Sequence[str]] | None = None  # name, kind and unit of handlers' families; None: all
    open_inference_protocol: bool = False  # GET /v2, /v2/health/live, /v2/health/ready
    token_file: str = ""  # key_file.json with the keys that requests must have; "": none is needed (ours)
    token_expiration_min: int = 60  # for which a key is valid
    cors_allowed_origin: str = ""  # "": no CORS headers; this and the next two are TorchServe's properties
    cors_allowed_methods: str = ""
    cors_allowed_headers: str = ""
    default_workers: int = 0  # the initial_workers of a registration that gives none
