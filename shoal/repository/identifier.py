"""What tells one model from another: its name, and with --model-namespacing the repository it lies in as well.

Clients know names only, so a name has to mean one model. Pure; used wherever models are looked up.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from shoal.errors import InvalidArgumentError

T = TypeVar("T")


class ModelIdentifier(NamedTuple):
    """Sorted by name. Without namespacing all namespaces are empty."""

    name: str
    namespace: str = ""  # the repository, as --model-repository has it; also empty for a model that came with a request

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


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
