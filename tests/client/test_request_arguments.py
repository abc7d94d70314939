"""shoal/client/request_arguments.py: the arguments that all clients' `infer` and `stream` take."""

import inspect
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shoal import AsyncClient, Client
from shoal.client.remote_grpc import GrpcClient
from shoal.client.remote_http import HttpClient
from shoal.client.request_arguments import RequestArguments, sent_parameters, takes, version_text
from shoal.errors import InvalidArgumentError
from shoal.request import Parameters


@pytest.mark.parametrize("kind", [Client, AsyncClient, HttpClient, GrpcClient])
def test_every_client_takes_and_shows_the_same(kind: type[object]) -> None:
    for name in ("infer", "stream"):
        method = getattr(kind, name)
        shown = inspect.signature(method)
        assert list(shown.parameters)[1:] == list(inspect.signature(RequestArguments).parameters)
        assert shown.parameters["outputs"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert shown.parameters["timeout"].kind is inspect.Parameter.KEYWORD_ONLY
        assert "Result" in str(shown.return_annotation)
        assert method.__doc__


class Asker:
    @takes(RequestArguments)
    def ask(self, asked: RequestArguments) -> RequestArguments:
        return asked


def test_the_arguments_become_a_question() -> None:
    inputs = {"x": np.zeros(1)}
    assert Asker().ask("model", inputs, ["y"], timeout=0.5) == RequestArguments("model", inputs, ["y"], timeout=0.5)
    with pytest.raises(TypeError, match="timout"):
        Asker().ask("model", inputs, timout=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Asker().ask("model", inputs, None, "1")  # type: ignore[call-arg]


def test_what_requests_carry_of_it() -> None:
    plain = RequestArguments("model", {}, timeout=2)
    assert (plain.is_plain, plain.timeout_us, plain.flags) == (True, 2_000_000, 0)
    assert RequestArguments("model", {}, timeout=0).timeout_us == 1
    assert RequestArguments("model", {}).timeout_us == 0
    assert plain.answer_by_ns(5) == 2_000_000_005
    assert RequestArguments("model", {}).answer_by_ns(5) == 0
    assert RequestArguments("model", {}, timeout=float("inf")).answer_by_ns(10**17) < 2**63
    assert RequestArguments("model", {}, sequence_id=1, sequence_start=True, sequence_end=True).flags == 3
    assert not RequestArguments("model", {}, request_id="a").is_plain
    assert not RequestArguments("model", {}, parameters={"a": 1}).is_plain
    assert not RequestArguments("model", {}, sequence_id="a").is_plain


@pytest.mark.parametrize(("value", "shown"), [(2**64, str(2**64)), (-1, "-1"), (1 << 9999, "a number of 10000 bits")])
@pytest.mark.parametrize(("name", "num_bits"), [("priority", 63), ("sequence_id", 64)])
def test_a_number_that_no_request_carries_is_refused_with_its_range(
    name: str, num_bits: int, value: int, shown: str
) -> None:
    arguments: dict[str, int] = {name: value}
    asked = RequestArguments("model", {}, **arguments)  # type: ignore[arg-type]
    assert not asked.is_plain, "a plain request is not looked at again"
    with pytest.raises(InvalidArgumentError, match=rf"^'{name}' is {shown}, must be from 0 to 2\^{num_bits} - 1$"):
        asked.check()
    most: dict[str, int] = {name: 2**num_bits - 1}
    RequestArguments("model", {}, **most).check()  # type: ignore[arg-type]


def test_a_number_of_numpy_s_is_sent_as_one_of_python_s_and_what_is_no_integer_is_refused() -> None:
    numbers: Any = {"priority": np.uint64(2**63 - 1), "sequence_id": np.int64(5)}
    asked = RequestArguments("model", {}, **numbers)
    asked.check()
    assert [(type(each), each) for each in (asked.priority, asked.sequence_id)] == [(int, 2**63 - 1), (int, 5)]
    others: list[Any] = [{"priority": 1.0}, {"priority": None}, {"sequence_id": 0.5}, {"sequence_id": np.int64(-1)}]
    for other in others:
        asked = RequestArguments("model", {}, **other)
        assert not asked.is_plain
        with pytest.raises(InvalidArgumentError, match=r"must be an integer, not|is -1, must be from 0"):
            asked.check()
    none: Any = None
    RequestArguments("model", {}, sequence_id=none).check()


@pytest.mark.parametrize("kind", [bool, int, float, np.bool_, np.int8, np.uint64])
def test_what_begins_and_ends_a_sequence_is_true_of_any_type(kind: Any) -> None:
    for start, end in ((0, 0), (1, 0), (0, 1), (1, 1)):
        asked = RequestArguments("model", {}, sequence_start=kind(start), sequence_end=kind(end))
        assert (type(asked.flags), asked.flags) == (int, start | end << 1)
    assert RequestArguments("model", {}, sequence_start=2).flags == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("none", [0, "", None, False, 0.0, np.int64(0)])
def test_no_sequence_has_the_number_0(none: Any) -> None:
    asked = RequestArguments("model", {}, sequence_id=none)
    asked.check()
    assert asked.is_plain
    assert (type(asked.correlation_id), asked.correlation_id) == (int, 0)


@pytest.mark.parametrize("timeout", [float("nan"), np.float32("nan"), Decimal("nan"), "5", b"5", [1], 1j, object()])
def test_a_timeout_that_is_no_number_is_refused(timeout: Any) -> None:
    asked = RequestArguments("model", {}, timeout=timeout)
    assert not asked.is_plain
    with pytest.raises(InvalidArgumentError, match=r"^'timeout' must be a number of seconds, not "):
        asked.check()


def test_a_timeout_of_any_length_becomes_one_that_a_request_carries() -> None:
    for given, seconds in (
        (5, 5.0), (np.float32(0.5), 0.5), (Decimal("0.5"), 0.5), (Fraction(1, 2), 0.5), (-1, -1.0), (True, 1.0),
        (float("inf"), 2**52 / 1e6), (10**400, 2**52 / 1e6), (-float("inf"), -(2**52) / 1e6),
    ):  # fmt: skip
        asked = RequestArguments("model", {}, timeout=given)  # type: ignore[arg-type]
        asked.check()
        assert (type(asked.timeout), asked.timeout) == (float, seconds)
        assert asked.timeout_us == max(1, int(seconds * 1e6))


@pytest.mark.parametrize("name", ["model", "request_id", "sequence_id", "version"])
def test_a_text_without_utf_8_is_refused_with_its_argument(name: str) -> None:
    given: dict[str, Any] = {"model": "m", "inputs": {}, name: "a\ud800"}
    with pytest.raises(InvalidArgumentError, match=f"^'{name}' has no UTF-8: "):
        RequestArguments(**given).check()


def test_a_plain_request_is_one_that_check_leaves_as_it_is() -> None:
    plain: list[Any] = [{}, {"timeout": 5}, {"timeout": 0.5}, {"outputs": ["y"]}, {"outputs": ()}, {"parameters": {}}]
    for more in plain:
        assert RequestArguments("model", {}, **more).is_plain
    others: list[Any] = [{"outputs": iter(["y"])}, {"copy": 1}, {"timing": np.zeros(2)}, {"timeout": -1}]
    for other in others:
        assert not RequestArguments("model", {}, **other).is_plain
    with pytest.raises(InvalidArgumentError, match=r"^'timing' must be true or false, not ndarray"):
        RequestArguments("model", {}, timing=np.zeros(2)).check()  # type: ignore[arg-type]


def test_a_version_is_a_text_or_a_number() -> None:
    assert [version_text(each) for each in ("", "2", 2, 0, np.int64(2))] == ["", "2", "2", "0", "2"]  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'version' is a number of 10000 bits, must be from 0"):
        version_text(1 << 9999)
    for other in (1.0, True, None, b"1"):
        with pytest.raises(InvalidArgumentError, match="a version is a number, or its text as '2', not"):
            version_text(other)  # type: ignore[arg-type]


def test_an_integer_that_no_parameter_holds_becomes_a_double_as_in_json() -> None:
    given: Parameters = {"most": 2**63 - 1, "least": -(2**63), "more": 2**70, "truth": True, "text": "x", "number": 0.5}
    sent = sent_parameters(given)
    assert sent == {**given, "more": float(2**70)}
    assert type(sent["more"]) is float
    assert sent_parameters(None) == sent_parameters({}) == {}
    with pytest.raises(InvalidArgumentError, match="parameter 'p' is a number beyond every datatype"):
        sent_parameters({"p": 10**400})
    with pytest.raises(InvalidArgumentError, match=r"^'parameters' must be a dict of values by name, not list"):
        sent_parameters(["p"])  # type: ignore[arg-type]
    for wrong in ({3: 1}, {b"p": 1}, {"\ud800": 1}, {"p": "\ud800"}):
        with pytest.raises(InvalidArgumentError, match=r"^'?parameters"):
            sent_parameters(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="parameter 'p' has invalid type"):
        sent_parameters({"p": [1]})  # type: ignore[dict-item]
