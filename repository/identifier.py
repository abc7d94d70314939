"""Identifiers of models: the name and, with --model-namespacing, the repository of the model.

Requests carry only a name, so a name that several repositories have is refused as ambiguous. Pure; used wherever models
are looked up.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from shoal.errors import InvalidArgumentError

T = TypeVar("T")

#: The most bytes of a file name on Linux.
MAX_NAME_BYTES = 255
#: Characters that no model's name may have: line feeds and other control characters would garble logs; lone surrogates
#: are not valid UTF-8.
UNSAFE_CHARACTERS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class ModelIdentifier(NamedTuple):
    """A model's identifier. Without namespacing all namespaces are empty."""

    name: str
    namespace: str = ""  # the repository, as --model-repository names it; empty for a model that came with a request

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


def is_model_name(name: str) -> bool:
    """Whether a model may have this name: a valid directory name, in UTF-8 and without control characters."""
    if name in {"", ".", ".."} or "/" in name or UNSAFE_CHARACTERS.search(name):
        return False
    return len(name.encode()) <= MAX_NAME_BYTES


def only_model(name: str, models: Sequence[T]) -> T | None:
    """The only one of `models`, which are named `name`; None if there are none.

    Raises InvalidArgumentError, in Triton's words, if there are several.
    """
    if len(models) > 1:
        raise InvalidArgumentError(
            f"There are {len(models)} identifiers of model '{name}' in global map, "
            "model namespace must be provided to resolve ambiguity."
        )
    return models[0] if models else None
