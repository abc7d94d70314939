"""The backend of a model: the fields platform and backend, completed from each other, the model's files or its name.

One table, from Triton's documentation. It also lists backends that Shoal does not have, so that their models are
refused by the backend's name (`support`). Pure.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config.messages import Config


class Platform(NamedTuple):
    """A row of the table of platforms."""

    platform: str
    backend: str
    filename: str  # in a version directory, unless default_model_filename says otherwise


#: In the order in which a version directory is searched for a model; an alias comes after the platform it means.
PLATFORMS = (
    Platform("tensorflow_savedmodel", "tensorflow", "model.savedmodel"),
    Platform("tensorflow_graphdef", "tensorflow", "model.graphdef"),
    Platform("tensorrt_plan", "tensorrt", "model.plan"),
    Platform("onnxruntime_onnx", "onnxruntime", "model.onnx"),
    Platform("", "openvino", "model.xml"),
    Platform("pytorch_libtorch", "pytorch", "model.pt"),
    Platform("torch_aoti", "pytorch", "model.pt2"),
    Platform("libtorch", "pytorch", "model.pt"),
    Platform("", "python", "model.py"),
)

#: Platform → its backend. A backend that is not among these takes any platform, as in Triton.
_BACKENDS = {row.platform: row.backend for row in PLATFORMS if row.platform}
ENSEMBLE = "ensemble"
#: Backend → its other runtimes, which find the model's file themselves.
RUNTIMES = {"pytorch": ("model.py",)}

#: The kinds of instance groups that a backend can serve; a backend written in Python, a user's too, takes all.
KINDS = {
    "identity": ("KIND_CPU", "KIND_GPU"),
    "onnxruntime": ("KIND_CPU", "KIND_GPU"),
    "tensorrt": ("KIND_GPU",),
    "torchserve": ("KIND_CPU", "KIND_GPU"),
    **dict.fromkeys(("embedding", "fil", "openvino", "tensorflow"), ("KIND_CPU",)),
}
#: Wrong names that users write for a backend or a platform → the beginning of the right one.
_MEANT = {
    "onnx": "onnxruntime", "onnx_runtime": "onnxruntime", "ort": "onnxruntime", "torch": "pytorch",
    "libtorch": "pytorch", "torchscript": "pytorch", "tf": "tensorflow", "savedmodel": "tensorflow", "trt": "tensorrt",
    "py": "python", "xgboost": "fil", "lightgbm": "fil", "sklearn": "fil", "forest": "fil", "vino": "openvino",
}  # fmt: skip
_ALL_KINDS = ("KIND_CPU", "KIND_GPU", "KIND_MODEL")


def kinds(backend: str) -> tuple[str, ...]:
    """The kinds of instance groups that `backend` can serve."""
    return KINDS.get(backend, _ALL_KINDS)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question to append to an error: whether the most similar known name was meant; "" if none is similar."""
    known = list(known)
    meant = _MEANT.get(name.lower(), "")
    likely = [each for each in known if meant and each.startswith(meant)]
    if not likely:
        import difflib  # here, since few names are wrong

        likely = difflib.get_close_matches(name.lower(), known, n=1)
    return f". Did you mean '{likely[0]}'?" if likely else ""


def groups_moved_to_cpu(config: Config) -> list[Config]:
    """The instance groups whose kind the backend cannot serve, where it can serve KIND_CPU instead."""
    can = kinds(config["backend"])
    return [
        group for group in config["instance_group"] if "KIND_CPU" in can and group["kind"] not in ("KIND_AUTO", *can)
    ]


def unsupported_kind(config: Config, group: Config) -> UnsupportedError:
    """The refusal of a group of a kind that the backend cannot serve: Triton's sentence, with the possible kinds."""
    backend = config["backend"] or config["platform"]
    return UnsupportedError(
        f"instance_group kind {group['kind']} not supported: group '{group['name']}' of model '{config['name']}' runs "
        f"on the backend '{backend}', which takes {' and '.join(kinds(backend))}"
    )


def detect_backend(names: Collection[str]) -> Platform | None:
    """The platform of the model whose file is among `names`, the entries of a version directory."""
    return next((row for row in PLATFORMS if row.filename in names), None)


def has_backend(config: Config) -> bool:
    """Whether the configuration itself names a platform or backend."""
    return bool(config["platform"] or config["backend"] or "ensemble_scheduling" in config)


def detect(config: Config, names: Collection[str]) -> Config:
    """`config` without a backend, completed by the one that the model's files or its name mean.

    `names` are the entries of the model's first version directory. Where none is a model's file, the model's own name
    decides: `something.identity` runs on the backend `identity`. Raises InvalidArgumentError for any other name.
    """
    row = detect_backend(names)
    if row is not None:
        return {**config, "platform": row.platform, "backend": row.backend}
    _, dot, backend = config["name"].partition(".")
    if not dot or not backend:
        raise InvalidArgumentError(
            f"Invalid model name: Could not determine backend for model '{config['name']}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    return {**config, "backend": backend}


def complete(config: Config) -> Config:
    """`config` with platform, backend and default_model_filename completed from each other."""
    platform, backend = config["platform"], config["backend"]
    row = next((row for row in PLATFORMS if _matches(row, platform, backend)), None)
    if row is None:
        return config
    if config["runtime"] in RUNTIMES.get(row.backend, ()):
        return {**config, "backend": row.backend}
    return {
        **config,
        "platform": platform or row.platform,
        "backend": backend or row.backend,
        "default_model_filename": config["default_model_filename"] or row.filename,
    }


def disagreements(config: Config) -> Iterator[str]:
    """Sentences about a platform and a backend that contradict each other; for `checks`."""
    name, platform, backend = config["name"], config["platform"], config["backend"]
    if ("ensemble_scheduling" in config or platform == ENSEMBLE) and (platform != ENSEMBLE or backend):
        yield f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
    if not platform and not backend:
        yield f"must specify 'platform' or 'backend' for '{name}'"
    if platform and platform != ENSEMBLE:
        question = "" if platform in _BACKENDS else did_you_mean(platform, _BACKENDS)
        if not backend:
            yield f"unexpected platform type '{platform}' for {name}{question}"
        elif backend in _BACKENDS.values() and backend != _BACKENDS.get(platform):
            yield f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}{question}"


def _matches(row: Platform, platform: str, backend: str) -> bool:
    """Whether `row` completes the pair; an empty field matches every row, two empty ones match none."""
    if platform and (not backend or backend in _BACKENDS.values()):
        return row.platform == platform and backend in ("", row.backend)
    return bool(backend) and row.backend == backend
