"""Which workers a model gets and on which cores, and that every instance has some."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgumentError
from shoal.placement import Gpu, Machine, Placement, format_cores, place, share_of_cores, thread_environment


def group(
    name: str, kind: str = "KIND_CPU", count: int = 1, gpus: tuple[int, ...] = (), host_policy: str = ""
) -> dict[str, Any]:
    return {"name": name, "kind": kind, "count": count, "gpus": list(gpus), "host_policy": host_policy}


def config(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"name": "m", "instance_group": list(groups)}


def gpu(number: int, cores: tuple[int, ...] = (0,)) -> Gpu:
    return Gpu(number, f"GPU-{number}", "9.0", cores)


def machine(cores: tuple[int, ...], num_gpus: int = 0) -> Machine:
    return Machine(cores, tuple(gpu(number, cores) for number in range(num_gpus)))


def test_instances_are_named_by_group_and_number() -> None:
    model = config(group("m_0", count=2), group("m_1"), group("named"))
    assert place(model, Machine((4, 5, 6, 7))) == (
        Placement("m_0_0", "m_0", "KIND_CPU", 0, (4,)),
        Placement("m_0_1", "m_0", "KIND_CPU", 0, (5,)),
        Placement("m_1_0", "m_1", "KIND_CPU", 0, (6,)),
        Placement("named_0", "named", "KIND_CPU", 0, (7,)),
    )


def test_the_implied_group_bears_the_model_s_name() -> None:
    assert [p.instance_name for p in place(config(group("m", count=2)), Machine((0, 1)))] == ["m_0", "m_1"]


def test_a_count_that_is_not_set_means_one() -> None:
    assert len(place(config(group("m", count=0)), Machine((0,)))) == 1


def test_the_count_is_per_gpu_and_names_repeat() -> None:
    placed = place(config(group("m_0", "KIND_GPU", count=2)), machine((0,), 2))
    assert [(p.instance_name, p.device_id) for p in placed] == [("m_0_0", 0), ("m_0_1", 0), ("m_0_0", 1), ("m_0_1", 1)]


def test_only_the_listed_gpus_are_used() -> None:
    placed = place(config(group("m_0", "KIND_GPU", gpus=(1, 3))), machine((0,), 4))
    assert [(p.device_id, p.gpu) for p in placed] == [(1, gpu(1)), (3, gpu(3))]


def test_a_gpu_of_too_low_a_capability_keeps_its_number() -> None:
    seen = Machine((0,), (gpu(1),), min_compute_capability=7.5)
    (placed,) = place(config(group("m_0", "KIND_GPU")), seen)
    assert placed.device_id == 1
    with pytest.raises(InvalidArgumentError, match=r"gpu id 0\. .* compatibility of 7\.500000 are: 1$"):
        place(config(group("m_0", "KIND_GPU", gpus=(0,))), seen)


def test_instances_on_gpus_divide_the_cores_beside_them() -> None:
    there = Machine(tuple(range(8)), (gpu(0, (0, 1, 2, 3)), gpu(1, (0, 1, 2, 3)), gpu(2, (4, 5, 6, 7))))
    placed = place(config(group("m_0", "KIND_GPU"), group("m_1")), there)
    assert [p.cores for p in placed] == [(0, 1), (2, 3), (4, 5, 6, 7), tuple(range(8))]


def test_a_host_policy_chooses_the_cores_by_its_name_or_the_kind_s() -> None:
    policies = {"cpu": (0, 1), "gpu_1": (2, 3), "model": (4,), "night": (5,), "gpu_0": (7,)}
    there = Machine(tuple(range(8)), (gpu(0, (6,)), gpu(1, (6,))), policies)
    groups = (
        group("a", count=2),
        group("b", "KIND_GPU", gpus=(1,)),
        group("c", "KIND_MODEL"),
        group("d", "KIND_GPU", gpus=(0,), host_policy="night"),
        group("e", "KIND_GPU", gpus=(0,), host_policy="unknown"),  # as if it named none that there is, as in Triton
    )
    placed = place(config(*groups), there)
    assert [p.cores for p in placed] == [(0,), (1,), (2, 3), (4,), (5,), (6,)]


def test_kind_model_places_itself() -> None:
    assert place(config(group("m_0", "KIND_MODEL")), machine((0, 1), 2)) == (
        Placement("m_0_0", "m_0", "KIND_MODEL", 0, (0, 1)),
    )


@pytest.mark.parametrize(
    ("bad", "num_gpus", "sentence"),
    [
        (group("g", "KIND_GPU"), 0, "has kind KIND_GPU but no GPUs are available"),
        (group("g", "KIND_CPU", gpus=(0,)), 1, "has kind KIND_CPU but specifies one or more GPUs"),
        (group("g", "KIND_MODEL", gpus=(0,)), 1, "has kind KIND_MODEL but specifies one or more GPUs"),
        (
            group("g", "KIND_GPU", gpus=(1, 7)),
            2,
            "specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute "
            "compatibility of 6.000000 are: 0, 1",
        ),
    ],
)
def test_a_group_the_machine_cannot_place_is_refused(bad: dict[str, Any], num_gpus: int, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        place(config(group("good"), bad), machine((0,), num_gpus))
    assert str(refusal.value) == f"instance group g of model m {sentence}"


@given(
    cores=st.lists(st.integers(0, 511), min_size=1, max_size=40, unique=True).map(tuple),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    num_gpus=st.integers(0, 3),
)
def test_every_instance_has_cores_and_a_name(cores: tuple[int, ...], counts: list[int], num_gpus: int) -> None:
    kind = "KIND_GPU" if num_gpus else "KIND_CPU"
    groups = [group(f"m_{number}", kind, count) for number, count in enumerate(counts)]
    placed = place(config(*groups), machine(cores, num_gpus))
    assert len(placed) == sum(counts) * max(1, num_gpus)
    assert len({(p.instance_name, p.device_id) for p in placed}) == len(placed)
    assert all(p.instance_name.startswith(f"{p.group}_") for p in placed)
    shares = [p.cores for p in placed]
    assert all(share and set(share) <= set(cores) for share in shares)
    if len(placed) <= len(cores):  # every core is used once, in order
        assert tuple(core for share in shares for core in share) == cores
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:  # one each, no core with two instances more than another
        used = [shares.count((core,)) for core in cores]
        assert sum(used) == len(placed)
        assert max(used) - min(used) <= 1


def test_the_remainder_is_spread() -> None:
    assert [share_of_cores(number, 3, range(8)) for number in range(3)] == [(0, 1), (2, 3, 4), (5, 6, 7)]


def test_thread_counts_match_the_cores() -> None:
    assert thread_environment(3) == {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}


@pytest.mark.parametrize(("cores", "text"), [((0,), "0"), ((0, 1, 2), "0-2"), ((5, 1, 0, 3), "0-1,3,5"), ((), "")])
def test_cores_are_written_as_taskset_does(cores: tuple[int, ...], text: str) -> None:
    assert format_cores(cores) == text
