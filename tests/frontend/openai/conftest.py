"""One version of a model as a front end knows it."""

from tests.star.conftest import LABELS, make_entry

__all__ = ["LABELS", "make_entry"]
