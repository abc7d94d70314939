"""What tells one model from another: its name, and with --model-namespacing the repository it lies in as well.

Clients know names only, so a name has to mean one model. Pure; used wherever models are looked up.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from shoal.errors import InvalidArgumentError

T = TypeVar("T")

#: What the kernel lets a file name have.
MAX_NAME_BYTES = 255
#: Control characters would write lines of their own into logs, and lone surrogates stand for what is no UTF-8.
UNSAFE_CHARACTERS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class ModelIdentifier(NamedTuple):
    """Sorted by name. Without namespacing all namespaces are empty."""

    name: str
    namespace: str = ""  # the repository, as --model-repository has it; also empty for a model that came with a request

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


def is_model_name(name: str) -> bool:
    """Whether a model may bear this name: that of a directory, in UTF-8 and without control characters."""
    if name in {"", ".", ".."} or "/" in name or UNSAFE_CHARACTERS.search(name):
        return False
    return len(name.encode()) <= MAX_NAME_BYTES


def meant_by(name: str, bearers: Sequence[T]) -> T | None:
    """The one of the models that bear a name, None where there is none.

    Raises InvalidArgumentError, Triton's sentence, where there are several.
    """
    if len(bearers) > 1:
        raise InvalidArgumentError(
            f"There are {len(bearers)} identifiers of model '{name}' in global map, "
            "model namespace must be provided to resolve ambiguity."
        )
    return bearers[0] if bearers else None
