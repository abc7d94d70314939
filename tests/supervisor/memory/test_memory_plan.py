"""Sizes of segments: hand-computed examples, and that rings hold all that can be outstanding."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.options import ServerOptions
from shoal.shm import layout, segment
from shoal.supervisor.memory import memory_plan

OPTIONS = ServerOptions(model_repository=(Path(),), shm_client_slab_mib=8, shm_worker_slab_mib=16, max_in_flight=100)
MIB = 1 << 20


def model(max_batch_size: int, *outputs: tuple[str, list[int]]) -> dict[str, object]:
    return {
        "max_batch_size": max_batch_size,
        "output": [{"data_type": data_type, "dims": dims} for data_type, dims in outputs],
    }


@pytest.mark.parametrize(
    ("config", "nbytes"),
    [
        (model(0, ("TYPE_FP32", [16])), MIB + 4096),  # tiny: the least
        (model(32, ("TYPE_FP32", [1000])), 4 * 256 * 1024 + 4096),  # 32 * (4000 + 512) = 144384 → 256 KiB, four times
        (model(1, ("TYPE_FP32", [3, 224, 224])), 4 * MIB + 4096),  # 602112 + 512 → 1 MiB, four times
        (model(8, ("TYPE_FP32", [-1])), 16 * MIB + 4096),  # unknown: 1 MiB a row, more than may be
        (model(64, ("TYPE_STRING", [16])), 4 * 512 * 1024 + 4096),  # 64 * (16 * 256 + 512) = 294912 → 512 KiB
    ],
    ids=["tiny", "scores", "image", "unknown", "strings"],
)
def test_worker_slab_holds_four_executions(config: dict[str, object], nbytes: int) -> None:
    assert memory_plan.worker_slab_nbytes(config, OPTIONS) == nbytes


def test_client_gets_the_slab_it_was_promised() -> None:
    geometry = memory_plan.client_geometry(OPTIONS)
    assert (geometry.slab_nbytes, geometry.ring_capacity) == (8 * MIB, 2800)
    assert (
        memory_plan.client_link_geometry(OPTIONS).ring_capacity >= 400 + 512
    )  # a reply each, and what traces are made of


def test_rings_of_many_records_begin_small_and_have_no_memory_for_the_rest() -> None:
    options = ServerOptions()
    own, link = memory_plan.client_geometry(options), memory_plan.client_link_geometry(options)
    assert (own.first_capacity, link.first_capacity) == (1024, 256)
    assert segment.first_nbytes(layout.LINK, link) == 4096 + 256 * 128
    assert link.nbytes == 4096 + 256 * 128 + 584 * 1024


@given(st.integers(min_value=0, max_value=512), st.integers(min_value=-1, max_value=100_000).filter(bool))
def test_rings_hold_all_that_can_be_outstanding(max_batch_size: int, dim: int) -> None:
    config = model(max_batch_size, ("TYPE_FP32", [dim]))
    own, link = memory_plan.worker_geometry(config, OPTIONS), memory_plan.worker_link_geometry(config, OPTIONS)
    requests = max(1, max_batch_size)
    assert own.ring_capacity >= requests  # a DONE each
    # A BATCH_ITEM each, a FREE per block of the slab and per result in a segment of its own.
    assert link.ring_capacity >= requests + own.slab_nbytes // 4096 + 256


@pytest.mark.parametrize(("nbytes", "slab"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (104857601, 104861696)])
def test_a_payload_gets_whole_pages(nbytes: int, slab: int) -> None:
    geometry = memory_plan.oversize_geometry(nbytes)
    assert (geometry.ring_capacity, geometry.slab_nbytes) == (0, slab)
