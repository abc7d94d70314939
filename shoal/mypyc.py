"""The decorator that tells mypyc about a class of the compiled build (setup.py). mypyc reads it, and it has no effect
when the class is made: so no server needs the package that the original is in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    ClassT = TypeVar("ClassT")

    def mypyc_attr(**_attributes: bool) -> Callable[[ClassT], ClassT]:
        """See mypyc's documentation."""
        return lambda decorated: decorated
