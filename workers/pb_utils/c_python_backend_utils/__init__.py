"""Triton's name for the compiled half of triton_python_backend_utils, from which some models import the classes."""

from triton_python_backend_utils import *  # noqa: F403 - the whole of it, under its other name
