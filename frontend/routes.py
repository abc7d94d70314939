"""The table of Triton's HTTP paths, methods and handlers. Pure."""

from shoal.frontend.call import HandlerCall, Route, blocking
from shoal.frontend.openai.completion import plan_chat, plan_completion
from shoal.frontend.openai.embeddings import embeddings
from shoal.frontend.openai.errors import refusal
from shoal.frontend.openai.models import model, models
from shoal.frontend.page.figures import access, figures
from shoal.frontend.page.files import file, index_page, page_methods
from shoal.frontend.page.metrics import metrics
from shoal.frontend.page.openapi import document
from shoal.frontend.response import Response
from shoal.frontend.road.inference import generate, generate_stream, generating, infer
from shoal.frontend.torchserve.management import scale_workers
from shoal.frontend.v2.finished_requests import finished_requests
from shoal.frontend.v2.health import live, model_ready, ready, reasons
from shoal.frontend.v2.log_lines import log_lines
from shoal.frontend.v2.log_settings import change_log_settings, log_settings
from shoal.frontend.v2.metadata import model_config, model_metadata, server_metadata
from shoal.frontend.v2.model_instances import batches, instances, scale
from shoal.frontend.v2.model_repository import index, load, refuse_repository_name, unload
from shoal.frontend.v2.recording import record, recording
from shoal.frontend.v2.rollout import change_rollout, rollout
from shoal.frontend.v2.shadow import shadow, shadows
from shoal.frontend.v2.shared_memory import regions, register, register_cuda, unregister
from shoal.frontend.v2.statistics import all_statistics, model_statistics
from shoal.frontend.v2.trace_settings import change_trace_settings, trace_settings


def model_is_ready(call: HandlerCall) -> Response:
    """The handler of GET /v2/models/M/ready. It waits only for a model that itself decides on its readiness
    (Found.asks_model)."""
    return model_ready(call.state, call.ask, call.name, call.version)


_VERSION = "(?:/versions/(?P<version>[0-9]+))?"
_MODEL = "/v2/models/(?P<name>[^/]+)" + _VERSION
_REPOSITORY_MODEL = "/v2/repository/models/(?P<name>[^/]+)"
_REGION = "(?:/region/(?P<name>[^/]+))?"
_INDEX = {"POST": blocking(lambda call: index(call.state, call.ask, call.body))}
_LOAD = {"POST": blocking(lambda call: load(call.state, call.ask, call.name, call.body))}
_UNLOAD = {"POST": blocking(lambda call: unload(call.state, call.ask, call.name, call.body))}
_INSTANCES = {
    "GET": blocking(lambda call: instances(call.ask, call.name, call.version)),
    "POST": blocking(lambda call: scale(call.state, call.ask, call.name, call.version, call.body)),
}
_BATCHES = {"GET": blocking(lambda call: batches(call.ask, call.name, call.version))}
_FINISHED = {"GET": blocking(lambda call: finished_requests(call.state, call.ask, call.query))}
_LOG = {"GET": blocking(lambda call: log_lines(call.state, call.query))}
_SHADOW = {
    "GET": blocking(lambda call: shadows(call.ask, call.query)),
    "POST": blocking(lambda call: shadow(call.state, call.ask, call.body)),
}
_RECORDING = {
    "GET": blocking(lambda call: recording(call.ask)),
    "POST": blocking(lambda call: record(call.state, call.ask, call.body)),
}
_ROLLOUT = {
    "GET": blocking(lambda call: rollout(call.ask, call.name)),
    "POST": blocking(lambda call: change_rollout(call.state, call.ask, call.name, call.body)),
}
_WORKERS = {"PUT": blocking(lambda call: scale_workers(call.ask, call.name, call.version, call.query))}
_SYSTEM = f"/v2/systemsharedmemory{_REGION}"
_CUDA = f"/v2/cudasharedmemory{_REGION}"
_REGISTER = {"POST": blocking(lambda call: register(call.state, call.ask, call.name, call.body))}
_UNREGISTER = {"POST": blocking(lambda call: unregister(call.state, call.ask, "system", call.name))}
_TRACE = {
    "GET": blocking(lambda call: trace_settings(call.state, call.ask, call.name)),
    "POST": blocking(lambda call: change_trace_settings(call.state, call.ask, call.name, call.body)),
}
_LOGGING = {
    "GET": lambda call: log_settings(call.state),
    "POST": blocking(lambda call: change_log_settings(call.state, call.ask, call.body)),
}

_CHAT, _COMPLETION = generating(plan_chat), generating(plan_completion)
_PAGE = page_methods(index_page)

#: The group of the page's files.
PAGE = "page"
#: Handlers of bodies as large as --max-request-bytes: tensors, and a model's files.
LARGE_BODIES = frozenset({infer, generate, generate_stream, _CHAT, _COMPLETION, embeddings, _LOAD["POST"]})

#: In the order in which they are tried: the most frequent path first, `/v2/models/stats` before any model.
ROUTES = (
    Route("/v2/health/live", {"GET": lambda call: live(call.state)}, "health"),
    Route("/v2/health/ready", {"GET": lambda call: ready(call.state)}, "health"),
    Route("/v2/health/reasons", {"GET": lambda call: reasons(call.state)}, "health"),  # ours
    Route("/-/healthz", {"GET": lambda call: ready(call.state)}, "health"),  # asked by Ray Serve's HAProxy
    Route("/v2", {"GET": lambda call: server_metadata(call.state)}, "metadata"),
    Route("/v2/models/stats", {"GET": lambda call: all_statistics(call.state)}, "statistics"),
    Route("/v2/trace/setting", _TRACE, "trace"),
    Route("/v2/logging", _LOGGING, "logging"),
    Route(_MODEL + "/infer", {"POST": infer}, "inference"),
    Route(_MODEL + "/ready", {"GET": model_is_ready}, "health"),
    Route(_MODEL, {"GET": lambda call: model_metadata(call.state, call.name, call.version)}, "metadata"),
    Route(_MODEL + "/config", {"GET": lambda call: model_config(call.state, call.name, call.version)}, "model-config"),
    Route(_MODEL + "/stats", {"GET": lambda call: model_statistics(call.state, call.name, call.version)}, "statistics"),
    Route(_MODEL + "/generate", {"POST": generate}, "inference"),
    Route(_MODEL + "/generate_stream", {"POST": generate_stream}, "inference"),
    Route("/v2/models/(?P<name>[^/]+)/trace/setting", _TRACE, "trace"),
    Route("/v2/repository(?:/[^/]+)?/index", _INDEX, "model-repository"),
    Route(_REPOSITORY_MODEL + "/load", _LOAD, "model-repository"),
    Route(_REPOSITORY_MODEL + "/unload", _UNLOAD, "model-repository"),
    Route("/v2/repository/[^/]+/models/[^/]+/(?:un)?load", {"POST": refuse_repository_name}, "model-repository"),
    Route(_REPOSITORY_MODEL + _VERSION + "/instances", _INSTANCES, "model-repository"),  # ours
    Route(_REPOSITORY_MODEL + _VERSION + "/batches", _BATCHES, "model-repository"),  # ours
    Route("/models/(?P<name>[^/]+)(?:/(?P<version>[^/]+))?", _WORKERS, "model-repository"),  # TorchServe's
    Route(f"{_SYSTEM}/status", {"GET": lambda call: regions(call.state, "system", call.name)}, "shared-memory"),
    Route(f"{_SYSTEM}/register", _REGISTER, "shared-memory"),
    Route(f"{_SYSTEM}/unregister", _UNREGISTER, "shared-memory"),
    Route(f"{_CUDA}/status", {"GET": lambda call: regions(call.state, "cuda", call.name)}, "shared-memory"),
    Route(
        f"{_CUDA}/register",
        {"POST": blocking(lambda call: register_cuda(call.state, call.ask, call.name, call.body))},
        "shared-memory",
    ),
    Route(
        f"{_CUDA}/unregister",
        {"POST": blocking(lambda call: unregister(call.state, call.ask, "cuda", call.name))},
        "shared-memory",
    ),
    Route("/v2/debug/requests", _FINISHED, "logging"),  # ours
    Route("/v2/debug/log", _LOG, "logging"),  # ours
    Route("/v2/recording", _RECORDING, "trace"),  # ours
    Route("/v2/models/(?P<name>[^/]+)/rollout", _ROLLOUT, "model-repository"),  # ours
    Route("/v2/shadow", _SHADOW, "trace"),  # ours
    # The page, all ours: it names no model and has a group of its own, which no --http-restricted-api is about.
    Route("/", _PAGE, PAGE),
    Route("/ui", _PAGE, PAGE),
    Route("/ui/figures", page_methods(figures), "statistics"),
    Route("/ui/metrics", page_methods(metrics), "statistics"),
    Route("/ui/access", {"POST": blocking(access)}, "model-repository"),
    Route(r"/ui/(?P<name>[a-z_]+\.[a-z]+)", page_methods(file), PAGE),
    Route(r"/openapi\.json", page_methods(document), "metadata"),
    # OpenAI's API, over the same models. A colon is KServe's of old: `/v1/models/M:predict`.
    Route("/v1/models", {"GET": models}, "metadata", refusal, checks_model=True),
    Route("/v1/models/(?P<name>[^/:]+)", {"GET": model}, "metadata", refusal),
    Route("/v1/chat/completions", {"POST": _CHAT}, "inference", refusal, checks_model=True),
    Route("/v1/completions", {"POST": _COMPLETION}, "inference", refusal, checks_model=True),
    Route("/v1/embeddings", {"POST": embeddings}, "inference", refusal, checks_model=True),
)

#: Handlers of bodies that are small: settings, names and numbers.
SMALL_BODIES = frozenset(handler for route in ROUTES for handler in route.methods.values()) - LARGE_BODIES
