"""The versions of models, by the texts with which TorchServe's clients name them. Pure. Front-end processes.

A version in TorchServe is any text, as "1.0"; in Shoal each version has a number, too, by which Triton's clients ask
for it. The text is the parameter `ts_version` of a version's configuration; the text of a version without it is its
number.
"""

from shoal.datatypes import BYTES
from shoal.errors import NotFoundError, ShoalError, UnavailableError
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.errors import NoWorkerError, RefusedError, refused
from shoal.star.models import NO_VERSION, ModelEntry

#: The number of a model's first worker; TorchServe names workers by ports.
FIRST_WORKER = 9000


def parameter(entry: ModelEntry, name: str, default: str = "") -> str:
    """A parameter of a version's configuration; `default` if the configuration has no parameter of that name."""
    found = entry.config.get("parameters", {}).get(name)
    return default if found is None else str(found["string_value"])


def version_text(entry: ModelEntry) -> str:
    """The text by which TorchServe's clients name the version."""
    return parameter(entry, "ts_version") or str(entry.version)


def look_up(state: ServerState, name: str, version: str | None) -> ModelEntry:
    """The version of a model that a prediction is for: the one with the text `version`, or the default version if no
    version is named; an empty name stands for the only model. Raises ShoalError in TorchServe's words."""
    models = state.models
    name = name or _only_model(state)
    if version:
        for entry in models.ready_entries(name):
            if version_text(entry) == version:
                return entry
    else:
        try:
            return models.lookup(name, None)
        except NotFoundError:
            pass
        except UnavailableError:
            raise NoWorkerError(name, None) from None
    known = versions_of(state, name)
    if not known:
        raise not_found(name)
    if version and version not in map(version_text, known):
        raise version_not_found(name, version)
    raise NoWorkerError(name, version)


def _only_model(state: ServerState) -> str:
    names = {entry.name for entry in state.models.entries() if entry.version != NO_VERSION and not entry.is_unloaded}
    if len(names) != 1:
        raise refused(400, "BadRequestException", "Parameter model_name is required.")
    return names.pop()


def versions_of(state: ServerState, name: str) -> list[ModelEntry]:
    """All versions of a model that clients may see, whatever their state."""
    return [
        entry
        for entry in state.models.entries()
        if entry.name == name and entry.version != NO_VERSION and not entry.is_unloaded
    ]


def default_version(state: ServerState, name: str) -> ModelEntry:
    """The version of a model that requests without a version get, or the newest version while none is ready. Raises
    ShoalError if there is no such model."""
    try:
        return state.models.lookup(name, None)
    except ShoalError:
        known = versions_of(state, name)
    if not known:
        raise not_found(name)
    return known[-1]


def not_found(name: str) -> RefusedError:
    """The error for a model that does not exist."""
    return refused(404, "ModelNotFoundException", f"Model not found: {name}")


def version_not_found(name: str, version: str) -> RefusedError:
    """The error for a version that a model does not have."""
    sentence = f"Model version: {version} does not exist for model: {name}"
    return refused(404, "ModelVersionNotFoundException", sentence)


def input_of(entry: ModelEntry) -> str:
    """The name of the input that takes a request's body. Raises ShoalError for a model without such an input."""
    inputs = list(entry.signature.inputs.values())
    required = [each for each in inputs if not each.optional] or inputs
    if len(required) == 1 and required[0].datatype is BYTES and required[0].dims in ((1,), (-1,)):
        return required[0].name
    raise takes_tensors(entry)


def takes_tensors(entry: ModelEntry) -> ShoalError:
    """The error for a prediction by a model that takes tensors, not a body."""
    wanted = ", ".join(f"'{each.name}' ({each.datatype.name})" for each in entry.signature.inputs.values())
    return refused(
        400,
        "BadRequestException",
        f"Model {entry.name} takes the tensors {wanted}, not a body: that needs one input of BYTES with dims [ 1 ]. "
        f"Send them to /v2/models/{entry.name}/infer of the server's own HTTP port",
    )
