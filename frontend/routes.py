"""The table of Triton's HTTP paths, methods and handlers. Pure."""

from shoal.frontend.call import Route, blocking
from shoal.frontend.openai.completion import plan_chat, plan_completion
from shoal.frontend.openai.embeddings import embeddings
from shoal.frontend.openai.errors import refusal
from shoal.frontend.openai.models import model, models
from shoal.frontend.page.figures import access, figures, metrics
from shoal.frontend.page.files import file, index_page, page_methods
from shoal.frontend.page.openapi import document
from shoal.frontend.road.inference import generate, generate_stream, generating, infer
from shoal.frontend.torchserve.management_api import scale_workers
from shoal.frontend.v2.debug import finished_requests, log_lines
from shoal.frontend.v2.health import live, model_ready, ready, reasons
from shoal.frontend.v2.log_settings import change_log_settings, log_settings
from shoal.frontend.v2.metadata import all_statistics, model_config, model_metadata, model_statistics, server_metadata
from shoal.frontend.v2.model_repository import batches, index, instances, load, refuse_repository_name, scale, unload
from shoal.frontend.v2.recording import record, recording
from shoal.frontend.v2.rollout import change_rollout, rollout
from shoal.frontend.v2.shadow import shadow, shadows
from shoal.frontend.v2.shared_memory import regions, register, register_cuda, unregister
from shoal.frontend.v2.trace_settings import change_trace_settings, trace_settings

_VERSION = "(?:/versions/(?P<version>[0-9]+))?"
_MODEL = "/v2/models/(?P<name>[^/]+)" + _VERSION
_REPOSITORY_MODEL = "/v2/repository/models/(?P<name>[^/]+)"
_REGION = "(?:/region/(?P<name>[^/]+))?"
_INSTANCES = {"GET": instances, "POST": scale}
_SYSTEM = f"/v2/systemsharedmemory{_REGION}"
_CUDA = f"/v2/cudasharedmemory{_REGION}"
_UNREGISTER = {"POST": blocking(lambda call: unregister(call.state, call.ask, "system", call.name))}
_TRACE = {"GET": trace_settings, "POST": change_trace_settings}

_CHAT, _COMPLETION = generating(plan_chat), generating(plan_completion)
_PAGE = page_methods(index_page)

#: The group of the page's files.
PAGE = "page"
#: Handlers of bodies as large as --max-request-bytes: tensors, and a model's files.
LARGE_BODIES = frozenset({infer, generate, generate_stream, _CHAT, _COMPLETION, embeddings, load})

#: The routes in the order in which they are tried: the most frequent path first, `/v2/models/stats` before any model.
ROUTES = (
    Route("/v2/health/live", {"GET": live}, "health"),
    Route("/v2/health/ready", {"GET": ready}, "health"),
    Route("/v2/health/reasons", {"GET": reasons}, "health"),  # ours
    Route("/-/healthz", {"GET": ready}, "health"),  # asked by Ray Serve's HAProxy
    Route("/v2", {"GET": server_metadata}, "metadata"),
    Route("/v2/models/stats", {"GET": all_statistics}, "statistics"),
    Route("/v2/trace/setting", _TRACE, "trace"),
    Route("/v2/logging", {"GET": log_settings, "POST": change_log_settings}, "logging"),
    Route(_MODEL + "/infer", {"POST": infer}, "inference"),
    Route(_MODEL + "/ready", {"GET": model_ready}, "health"),
    Route(_MODEL, {"GET": model_metadata}, "metadata"),
    Route(_MODEL + "/config", {"GET": model_config}, "model-config"),
    Route(_MODEL + "/stats", {"GET": model_statistics}, "statistics"),
    Route(_MODEL + "/generate", {"POST": generate}, "inference"),
    Route(_MODEL + "/generate_stream", {"POST": generate_stream}, "inference"),
    Route("/v2/models/(?P<name>[^/]+)/trace/setting", _TRACE, "trace"),
    Route("/v2/repository(?:/[^/]+)?/index", {"POST": index}, "model-repository"),
    Route(_REPOSITORY_MODEL + "/load", {"POST": load}, "model-repository"),
    Route(_REPOSITORY_MODEL + "/unload", {"POST": unload}, "model-repository"),
    Route("/v2/repository/[^/]+/models/[^/]+/(?:un)?load", {"POST": refuse_repository_name}, "model-repository"),
    Route(_REPOSITORY_MODEL + _VERSION + "/instances", _INSTANCES, "model-repository"),  # ours
    Route(_REPOSITORY_MODEL + _VERSION + "/batches", {"GET": batches}, "model-repository"),  # ours
    # TorchServe's path to scale the workers of a model.
    Route("/models/(?P<name>[^/]+)(?:/(?P<version>[^/]+))?", {"PUT": scale_workers}, "model-repository"),
    Route(f"{_SYSTEM}/status", {"GET": lambda call: regions(call, "system")}, "shared-memory"),
    Route(f"{_SYSTEM}/register", {"POST": register}, "shared-memory"),
    Route(f"{_SYSTEM}/unregister", _UNREGISTER, "shared-memory"),
    Route(f"{_CUDA}/status", {"GET": lambda call: regions(call, "cuda")}, "shared-memory"),
    Route(f"{_CUDA}/register", {"POST": register_cuda}, "shared-memory"),
    Route(
        f"{_CUDA}/unregister",
        {"POST": blocking(lambda call: unregister(call.state, call.ask, "cuda", call.name))},
        "shared-memory",
    ),
    Route("/v2/debug/requests", {"GET": finished_requests}, "logging"),  # ours
    Route("/v2/debug/log", {"GET": log_lines}, "logging"),  # ours
    Route("/v2/recording", {"GET": recording, "POST": record}, "trace"),  # ours
    Route("/v2/models/(?P<name>[^/]+)/rollout", {"GET": rollout, "POST": change_rollout}, "model-repository"),  # ours
    Route("/v2/shadow", {"GET": shadows, "POST": shadow}, "trace"),  # ours
    # The page's paths, none of which Triton has. The page's files have a group of their own, which
    # --http-restricted-api does not know.
    Route("/", _PAGE, PAGE),
    Route("/ui", _PAGE, PAGE),
    Route("/ui/figures", page_methods(figures), "statistics"),
    Route("/ui/metrics", page_methods(metrics), "statistics"),
    Route("/ui/access", {"POST": blocking(access)}, "model-repository"),
    Route(r"/ui/(?P<name>[a-z_]+\.[a-z]+)", page_methods(file), PAGE),
    Route(r"/openapi\.json", page_methods(document), "metadata"),
    # OpenAI's API, over the same models. A name ends at a colon, since `/v1/models/M:predict` is a path of KServe's
    # first protocol.
    Route("/v1/models", {"GET": models}, "metadata", refusal, checks_model=True),
    Route("/v1/models/(?P<name>[^/:]+)", {"GET": model}, "metadata", refusal),
    Route("/v1/chat/completions", {"POST": _CHAT}, "inference", refusal, checks_model=True),
    Route("/v1/completions", {"POST": _COMPLETION}, "inference", refusal, checks_model=True),
    Route("/v1/embeddings", {"POST": embeddings}, "inference", refusal, checks_model=True),
)

#: Handlers of bodies that are small: settings, names and numbers.
SMALL_BODIES = frozenset(handler for route in ROUTES for handler in route.methods.values()) - LARGE_BODIES
