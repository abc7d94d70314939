"""Clients are tested with the models that the star's tests know."""

from tests.star.conftest import make_entry

__all__ = ["make_entry"]
