"""One version of a model as a front end knows it, made from the fields of its configuration that requests meet."""

from typing import Any

from shoal.model_config.signature import Signature
from shoal.star.models import ModelEntry

LABELS: dict[str, tuple[str, ...]] = {"LABELLED": ("zero", "one", "")}


def entry_of(name: str, max_batch_size: int, inputs: list[Any], outputs: list[Any] | None = None) -> ModelEntry:
    """`inputs` and `outputs` are (name, data type, dims) with more fields as a dict at the end.

    Outputs named LABELLED have the labels "zero" and "one" and, for index 2, an empty one.
    """

    def tensors(rows: list[Any]) -> list[dict[str, Any]]:
        return [{"name": row[0], "data_type": row[1], "dims": row[2], **(row[3] if row[3:] else {})} for row in rows]

    config = {"name": name, "max_batch_size": max_batch_size, "input": tensors(inputs)}
    config["output"] = tensors([("OUT" + row[0], *row[1:3]) for row in inputs] if outputs is None else outputs)
    return ModelEntry(name, 1, 7, 0, "READY", "", False, 1, 1, config, Signature.from_config(config), 0.0, LABELS)
