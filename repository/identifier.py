"""Identifiers of models: the name and, with --model-namespacing, the repository of the model.

Clients know only names, so a name has to mean one model. Pure; used wherever models are looked up.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from shoal.errors import InvalidArgumentError

T = TypeVar("T")

#: The most bytes of a file name on Linux.
MAX_NAME_BYTES = 255
#: Characters that no model's name may have: control characters would begin lines in logs, lone surrogates are no UTF-8.
UNSAFE_CHARACTERS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class ModelIdentifier(NamedTuple):
    """A model's identifier. Without namespacing all namespaces are empty."""

    name: str
    namespace: str = ""  # the repository, as --model-repository names it; empty for a model that came with a request

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


def is_model_name(name: str) -> bool:
    """Whether a model may have this name: one of a directory, in UTF-8 and without control characters."""
    if name in {"", ".", ".."} or "/" in name or UNSAFE_CHARACTERS.search(name):
        return False
    return len(name.encode()) <= MAX_NAME_BYTES


def meant_by(name: str, bearers: Sequence[T]) -> T | None:
    """The only one of the models with a name; None where there is none.

    Raises InvalidArgumentError, in Triton's words, where there are several.
    """
    if len(bearers) > 1:
        raise InvalidArgumentError(
            f"There are {len(bearers)} identifiers of model '{name}' in global map, "
            "model namespace must be provided to resolve ambiguity."
        )
    return bearers[0] if bearers else None
