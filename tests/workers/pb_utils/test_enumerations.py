"""Codes, levels and kinds as Triton's Python backend has them: enumerations that pybind11 makes (pb_stub.cc)."""

import copy
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils.errors import as_shoal_error, as_triton_error

from shoal import errors
from shoal.errors import NotFoundError

FAMILY = pb_utils.MetricFamily
MEMBERS = [
    (pb_utils.TritonError.UNKNOWN, "UNKNOWN", 0, "__ErrorCode"),
    (pb_utils.TritonError.INTERNAL, "INTERNAL", 1, "__ErrorCode"),
    (pb_utils.TritonError.NOT_FOUND, "NOT_FOUND", 2, "__ErrorCode"),
    (pb_utils.TritonError.INVALID_ARG, "INVALID_ARG", 3, "__ErrorCode"),
    (pb_utils.TritonError.UNAVAILABLE, "UNAVAILABLE", 4, "__ErrorCode"),
    (pb_utils.TritonError.UNSUPPORTED, "UNSUPPORTED", 5, "__ErrorCode"),
    (pb_utils.TritonError.ALREADY_EXISTS, "ALREADY_EXISTS", 6, "__ErrorCode"),
    (pb_utils.TritonError.CANCELLED, "CANCELLED", 7, "__ErrorCode"),
    (pb_utils.Logger.INFO, "INFO", 0, "LogLevel"),
    (pb_utils.Logger.WARNING, "WARNING", 1, "LogLevel"),
    (pb_utils.Logger.ERROR, "ERROR", 2, "LogLevel"),
    (pb_utils.Logger.VERBOSE, "VERBOSE", 3, "LogLevel"),
    (FAMILY.COUNTER, "COUNTER", 0, "MetricKind"),
    (FAMILY.GAUGE, "GAUGE", 1, "MetricKind"),
    (FAMILY.HISTOGRAM, "HISTOGRAM", 2, "MetricKind"),
]


@pytest.mark.parametrize(("member", "name", "value", "kind"), MEMBERS)
def test_a_member_has_a_name_and_a_number(member: Any, name: str, value: int, kind: str) -> None:
    assert (member.name, member.value, int(member)) == (name, value, value)
    assert (str(member), f"{member}", repr(member)) == (*[f"{kind}.{name}"] * 2, f"<{kind}.{name}: {value}>")
    assert member == value
    assert hash(member) == hash(value)
    assert member  # `kind or GAUGE` made a gauge of a counter
    assert type(member)(value) is member
    assert type(member).__members__[name] is member
    assert copy.deepcopy(member) is member


@pytest.mark.parametrize("code", list(type(pb_utils.TritonError.INTERNAL)))
def test_an_error_has_the_code_that_it_was_made_with(code: int) -> None:
    error = pb_utils.TritonError("no", code)
    assert error.code() is code
    assert pb_utils.TritonError("no", int(code)).code() is code
    assert as_triton_error(as_shoal_error(error)).code() is code


def test_an_error_without_a_code_is_internal_and_one_of_the_server_has_the_server_s() -> None:
    assert pb_utils.TritonError("no").code() is pb_utils.TritonError.INTERNAL
    assert as_triton_error(NotFoundError("no")).code() is pb_utils.TritonError.NOT_FOUND
    assert as_triton_error(errors.ShoalError("no")).code() is pb_utils.TritonError.INTERNAL
    assert repr(pb_utils.TritonError("no")) == "TritonError('no', INTERNAL)"


@pytest.mark.parametrize("code", [8, -1, "INTERNAL", None])
def test_other_codes_are_refused(code: int) -> None:
    with pytest.raises(TypeError, match="use one of TritonError's"):
        pb_utils.TritonError("no", code)


@pytest.mark.parametrize("level", [0, "INFO", None])
def test_other_levels_are_refused(level: Any) -> None:
    with pytest.raises(TypeError, match="the level must be one of Logger's"):
        pb_utils.Logger.log("a line", level)


def test_classes_have_the_names_of_triton_s() -> None:
    assert pb_utils.Logger.LogLevel is type(pb_utils.Logger.INFO)
    assert FAMILY.MetricKind is type(FAMILY.GAUGE)
