"""The arguments of `shoal.Client`, through shared memory and over the network: what is converted, and what refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shoal import Client, errors
from tests.end_to_end.client_server import BOTH, A, B, sums


def test_numpys_booleans_begin_and_end_a_sequence(remote: Client, client: Client) -> None:
    for start, end in ((True, False), (False, True)):
        more: Any = {"sequence_id": np.int64(8), "sequence_start": np.bool_(start), "sequence_end": np.bool_(end)}
        there, here = (each.infer("asked", {"INPUT0": [1]}, **more)["OUTPUT0"][0] for each in (remote, client))
        assert there == here == b" 8 %d []" % (start + 2 * end)


def test_a_request_like_an_earlier_one_may_name_no_sequence_in_its_own_way(client: Client) -> None:
    assert sums(client)
    for none in (None, np.int64(0), 0.0):
        more: Any = {"sequence_id": none, "sequence_start": np.bool_(False)}
        assert (client.infer("simple", BOTH, **more)["OUTPUT0"] == A + B).all()


@pytest.mark.parametrize(
    "more",
    [
        {"request_id": "\ud800"},
        {"timeout": float("nan")},
        {"timeout": "5"},
        {"parameters": {"\ud800": 1}},
        {"parameters": {"p": "\ud800"}},
        {"outputs": 5},
        {"outputs": [["OUTPUT0"]]},
        {"outputs": "OUTPUT0"},
        {"timing": np.zeros(2)},
        {"version": []},
        {"version": True},
        {"parameters": np.zeros(2)},
    ],
)
def test_an_argument_that_no_request_carries_is_named_and_leaves_no_block(
    client: Client, remote: Client, more: dict[str, Any]
) -> None:
    for _ in range(2):  # a request like an earlier one is not checked again
        assert sums(client)
        assert client.infer("simple", BOTH, version=1)
    slab = client._connected().connection._port.slab
    before = slab.free_nbytes
    for each in (client, client, remote):
        for inputs in (BOTH, {name: array.tolist() for name, array in BOTH.items()}):
            with pytest.raises(errors.InvalidArgumentError, match=f"^'?(a )?{next(iter(more))}"):
                each.infer("simple", inputs, **more)
    assert slab.free_nbytes == before


def test_a_model_or_inputs_of_a_wrong_type_are_named(client: Client, remote: Client) -> None:
    wrong: Any
    for each in (client, remote):
        for wrong in (None, 3, ["simple"], b"simple", "\ud800"):
            for call in (each.is_ready, each.model_metadata, each.model_config, each.statistics):
                with pytest.raises(errors.InvalidArgumentError, match=r"^'model' "):
                    call(wrong)
            for inputs in (BOTH, {"INPUT0": A.tolist(), "INPUT1": B.tolist()}):
                with pytest.raises(errors.InvalidArgumentError, match=r"^'model' "):
                    each.infer(wrong, inputs)
        for wrong in (None, [A, B], 5, {3: A}, {"\ud800": A}):
            with pytest.raises(errors.InvalidArgumentError, match=r"^'inputs' "):
                each.infer("simple", wrong)
        for wrong in (16, None, (1.0, 16), [None], (1,) * 100):
            with pytest.raises(errors.InvalidArgumentError, match=r"^'shape' "):
                each.empty("simple", "INPUT0", wrong)
        with pytest.raises(errors.InvalidArgumentError, match=r"^'name' "):
            each.empty("simple", ["INPUT0"], (1, 16))  # type: ignore[arg-type]
        assert each.empty("simple", "INPUT0", tuple(np.array([1, 16]))).shape == (1, 16)
        with pytest.raises(errors.InvalidArgumentError, match=r"^'model' has 100000 characters|Line is too large"):
            each.model_metadata("x" * 100_000)
        assert each.is_live(), "the connection stays"


def test_an_array_of_another_type_is_refused_with_the_way_out(client: Client, remote: Client) -> None:
    for each in (client, remote):
        for array, way in (
            (A.astype(">i4"), r"convert it with astype\('<i4'\)"),
            (A.astype(complex), "the dtype for the datatype in model_metadata"),
            (A.astype(object), "is int, neither bytes nor text: an array of numbers needs a dtype of"),
        ):
            with pytest.raises(errors.InvalidArgumentError, match=f"'INPUT0'.*{way}"):
                each.infer("simple", {"INPUT0": array, "INPUT1": B})
        for same in (np.asfortranarray(A), A[:, ::-1][:, ::-1], A.astype(np.int32, copy=True).reshape(16, 1).T):
            assert (each.infer("simple", {"INPUT0": same, "INPUT1": B})["OUTPUT0"] == A + B).all()


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400])
def test_a_huge_timeout_is_no_limit_for_any_client(client: Client, remote: Client, timeout: float) -> None:
    """gRPC said at once that it was over; threads that do not lead failed with OverflowError."""
    assert (remote.infer("simple", BOTH, timeout=timeout)["OUTPUT0"] == A + B).all()
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(client.infer, "simple", BOTH, timeout=timeout) for _ in range(32)]
        assert all((each.result()["OUTPUT0"] == A + B).all() for each in answers)
    for over in (0, -1, -float("inf")):
        for each in (client, remote):
            with pytest.raises(errors.TimedOutError):
                each.infer("simple", BOTH, timeout=over)


def test_outputs_may_come_from_any_iterable(client: Client) -> None:
    """A generator was used up, and all outputs were sent."""
    for outputs in (iter(["OUTPUT1"]), np.array(["OUTPUT1"]), {"OUTPUT1"}, ("OUTPUT1",)):
        assert list(client.infer("simple", BOTH, outputs)) == ["OUTPUT1"]  # type: ignore[arg-type]


def test_a_version_may_be_a_number(remote: Client, client: Client) -> None:
    for each in (remote, client):
        assert each.infer("simple", BOTH, version=1).model_version == "1"
        assert each.is_ready("simple", version=1)
        assert each.model_config("simple", version=1)["name"] == "simple"
        assert each.model_metadata("simple", version=1)["name"] == "simple"
        assert [row["version"] for row in each.statistics("simple", version=1)] == ["1"]
        assert each.empty("mlp", "features", (1, 512), version=1).shape == (1, 512)
        with pytest.raises(errors.NotFoundError, match="'simple' version 7 is not found"):
            each.infer("simple", BOTH, version=7)


def test_a_parameter_beyond_int64_is_a_double_as_in_json(remote: Client, client: Client) -> None:
    there, here = (each.infer("asked", {"INPUT0": [1]}, parameters={"p": 2**70}) for each in (remote, client))
    assert here["OUTPUT0"][0] == there["OUTPUT0"][0] == b" 0 0 [('p', 1.1805916207174113e+21)]"
