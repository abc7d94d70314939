"""The settings in config.pbtxt of each output's look-up, read into one value and checked.

Opens no file. A setting is a parameter, `OUTPUT.setting` for one output or `setting` for all of them. Runs in a worker,
while it loads.
"""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from shoal.datatypes import BF16, BY_CONFIG_NAME, BYTES, Datatype, format_shape
from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature, TensorSpec
from shoal.workers.backends.backend import BackendModel

_log = logging.getLogger(__name__)

SETTINGS = ("table", "ids", "offsets", "pooling", "padding_id", "unknown_id", "scale", "datatype", "key")
POOLINGS = ("none", "sum", "mean")
#: Prefixes of a table that lies in a store instead of numpy's files.
STORES = ("lmdb:", "rocksdb:", "redis:", "rediss:", "unix:")
ERROR, ZEROS = "error", "zeros"


@dataclass(frozen=True, slots=True)
class LookUp:
    """The look-up of one output: from which ids, in which table, and how the rows are combined."""

    output: TensorSpec
    dims: tuple[int, ...]  # the dims of a row; -1: the table decides
    table: str
    ids: TensorSpec
    offsets: str | None  # name of the input with each bag's start in the ids
    pooling: str
    padding_id: int | bytes | None  # entries with this id only fill up bags
    unknown_id: int | bytes | None  # used in place of ids that the table does not have; None: see zeros
    zeros: bool  # unknown ids have rows of zeros; otherwise, without unknown_id, they are an error
    scale: float | None
    datatype: Datatype  # the datatype of the rows in a store
    key: str  # the key under which a store has a row; contains "{id}" once

    @property
    def is_pooled(self) -> bool:
        """Whether the rows of a bag are joined to one row."""
        return self.pooling != "none"


def look_ups(model: BackendModel, signature: Signature) -> tuple[LookUp, ...]:
    """One look-up per output. Raises InvalidArgumentError for settings that have no effect or contradict each other."""
    _refuse_misspelt(model, signature)
    return tuple(_look_up(model, signature, output) for output in signature.outputs.values())


def _refuse_misspelt(model: BackendModel, signature: Signature) -> None:
    for key in model.config["parameters"]:
        output, _, setting = key.rpartition(".")
        if output in signature.outputs and setting not in SETTINGS:
            raise InvalidArgumentError(
                f"model '{model.name}': there is no setting '{setting}' for output '{output}', there are: "
                f"{', '.join(SETTINGS)}"
            )
        if output and output not in signature.outputs and setting in SETTINGS:
            raise InvalidArgumentError(
                f"model '{model.name}': parameter '{key}' is of an output that is not configured"
            )
        if not output and setting not in SETTINGS and (meant := get_close_matches(setting, SETTINGS, 1, 0.8)):
            # Only a warning: a model's parameters may be meant for its clients.
            _log.warning("model '%s': parameter '%s' is no setting, '%s' is", model.name, setting, *meant)


def _look_up(model: BackendModel, signature: Signature, output: TensorSpec) -> LookUp:
    where = f"model '{model.name}', output '{output.name}'"

    def setting(name: str) -> str | None:
        own = model.parameter(f"{output.name}.{name}")
        return model.parameter(name) if own is None else own

    offsets, pooling, unknown = setting("offsets"), setting("pooling") or "none", setting("unknown_id") or ERROR
    ids = _ids(where, signature, setting("ids"), offsets)
    leading = ids.model_dims if pooling == "none" else ids.model_dims[:-1] if offsets is None else (-1,)
    look_up = LookUp(
        output=output,
        dims=_row_dims(where, output, leading),
        table=_table(where, setting("table") or f"{output.name}.npy"),
        ids=ids,
        offsets=offsets,
        pooling=pooling,
        padding_id=_id(where, "padding_id", ids, setting("padding_id")),
        unknown_id=None if unknown in (ERROR, ZEROS) else _id(where, "unknown_id", ids, unknown),
        zeros=unknown == ZEROS,
        scale=_scale(where, setting("scale")),
        datatype=_datatype(where, setting("datatype") or output.datatype.config_name),
        key=setting("key") or "{id}",
    )
    _check(where, signature, look_up)
    return look_up


def _check(where: str, signature: Signature, look_up: LookUp) -> None:
    output, offsets = look_up.output, look_up.offsets
    if look_up.pooling not in POOLINGS:
        raise InvalidArgumentError(f"{where}: pooling must be {', '.join(POOLINGS)}, got '{look_up.pooling}'")
    if output.datatype is BYTES:
        raise InvalidArgumentError(f"{where}: rows of a table are numbers, the output cannot be TYPE_STRING")
    if output.datatype.dtype.kind != "f" and (look_up.is_pooled or look_up.scale is not None):
        raise InvalidArgumentError(
            f"{where}: pooling and scale need TYPE_FP16, TYPE_FP32 or TYPE_FP64, not {output.datatype.config_name}"
        )
    if look_up.key.count("{id}") != 1:
        raise InvalidArgumentError(f"{where}: key must contain '{{id}}' once, got '{look_up.key}'")
    if look_up.is_pooled and not look_up.ids.model_dims:
        raise InvalidArgumentError(f"{where}: a bag is the last dimension of its ids, '{look_up.ids.name}' has none")
    if look_up.ids.ragged and not (look_up.is_pooled and len(look_up.ids.model_dims) == 1 and signature.max_batch_size):
        raise InvalidArgumentError(
            f"{where}: ragged ids need pooling sum or mean, a single dimension, which is the bag, and max_batch_size"
        )
    if offsets is None:
        return
    if offsets not in signature.inputs or signature.inputs[offsets].datatype.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{where}: offsets '{offsets}' must be an input of whole numbers")
    if not look_up.is_pooled or signature.max_batch_size > 0:
        raise InvalidArgumentError(
            f"{where}: offsets need pooling sum or mean and max_batch_size 0; batches take bags of one length, filled "
            "up with padding_id"
        )
    if len(signature.inputs[offsets].model_dims) != 1 or len(look_up.ids.model_dims) != 1:
        raise InvalidArgumentError(f"{where}: offsets and the ids that they part have one dimension each")


def _ids(where: str, signature: Signature, name: str | None, offsets: str | None) -> TensorSpec:
    others = [each for each in signature.inputs if each != offsets]
    if name is None and len(others) == 1:
        name = others[0]
    spec = None if name is None else signature.inputs.get(name)
    if spec is None:
        raise InvalidArgumentError(
            f"{where}: {'ids must name one of the inputs' if name is None else f'ids names no input: {name}'}; there "
            f"are: {', '.join(others)}"
        )
    if spec.datatype is BF16 or spec.datatype.dtype.kind not in "iuO":
        raise InvalidArgumentError(
            f"{where}: ids '{spec.name}' must be whole numbers or strings, not {spec.datatype.config_name}"
        )
    return spec


def _row_dims(where: str, output: TensorSpec, leading: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of a row: the output's dims beyond `leading`, which are those of the ids or of the bags."""
    dims = output.model_dims
    head, row = dims[: len(leading)], dims[len(leading) :]
    if len(head) < len(leading) or any(a != b and -1 not in (a, b) for a, b in zip(head, leading, strict=True)):
        raise InvalidArgumentError(
            f"{where}: its dims must begin with {format_shape(leading)}, as its ids or bags have it, and go on with "
            f"those of a row; they are {format_shape(dims)}"
        )
    return row


def _table(where: str, table: str) -> str:
    path = table.removeprefix("lmdb:").removeprefix("rocksdb:")
    is_path = path != table or not table.startswith(STORES)
    if is_path and (os.path.isabs(path) or ".." in path.split("/") or not path):
        raise InvalidArgumentError(f"{where}: table '{table}' must lie in the version's directory")
    return table


def _id(where: str, setting: str, ids: TensorSpec, text: str | None) -> int | bytes | None:
    if text is None:
        return None
    if ids.datatype is BYTES:
        return text.encode()
    limits = np.iinfo(ids.datatype.dtype)
    with suppress(ValueError):
        if limits.min <= (number := int(text)) <= limits.max:
            return number
    raise InvalidArgumentError(
        f"{where}: {setting} must be {'error, zeros or ' if setting == 'unknown_id' else ''}an id of "
        f"{ids.datatype.config_name}, got '{text}'"
    )


def _scale(where: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: scale must be a number, got '{text}'") from error


def _datatype(where: str, name: str) -> Datatype:
    if name not in BY_CONFIG_NAME:
        raise InvalidArgumentError(f"{where}: datatype must be that of a tensor, such as TYPE_FP16, got '{name}'")
    return BY_CONFIG_NAME[name]
