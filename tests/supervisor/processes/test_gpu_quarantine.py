"""gpu_quarantine.py: schedules of losses on a clock of the test's."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.supervisor.processes.gpu_quarantine import (
    LONGEST_PAUSE_S,
    MAX_LOSSES,
    MIN_MODELS,
    PROBATION_S,
    WITHIN_S,
    GpuQuarantine,
)


def lose(
    quarantine: GpuQuarantine, models: str, start_s: float = 1000.0, step_s: float = 1.0, gpu: str = "A"
) -> list[bool]:
    return [quarantine.lost(gpu, model, start_s + step_s * number) for number, model in enumerate(models)]


def test_four_losses_of_two_models_within_a_minute() -> None:
    quarantine = GpuQuarantine()
    assert lose(quarantine, "abab") == [False, False, False, True]
    assert (quarantine.left_s("A", 1003.0), quarantine.left_s("A", 1033.0), quarantine.left_s("A", 1063.0)) == (
        60,
        30,
        0,
    )
    assert quarantine.left_s("B", 1003.0) == 0


def test_one_model_is_left_to_its_own_breaker() -> None:
    quarantine = GpuQuarantine()
    assert lose(quarantine, "aaaaaaaa") == [False] * 8
    assert quarantine.lost("A", "b", 1008.0)


def test_losses_that_are_far_apart() -> None:
    assert lose(GpuQuarantine(), "abababab", step_s=20.1) == [False] * 8
    assert lose(GpuQuarantine(), "abab", step_s=20.0)[-1]


def test_each_gpu_for_itself() -> None:
    quarantine = GpuQuarantine()
    assert lose(quarantine, "ab") + lose(quarantine, "ab", gpu="B") == [False] * 4


def test_a_gpu_on_probation_is_quarantined_by_one_loss_and_for_longer() -> None:
    quarantine, now_s = GpuQuarantine(), 1003.0
    lose(quarantine, "abab")
    lasted = []
    for _ in range(5):
        assert not quarantine.lost("A", "a", now_s + 1)  # a worker that had begun before
        now_s += quarantine.left_s("A", now_s)
        assert quarantine.lost("A", "a", now_s)
        lasted.append(quarantine.left_s("A", now_s))
    assert lasted == [120, 240, 480, 600, 600]


def test_probation_ends() -> None:
    quarantine = GpuQuarantine()
    lose(quarantine, "abab")
    assert not quarantine.lost("A", "a", 1063.0 + PROBATION_S + 1)
    assert quarantine.left_s("A", 1063.0 + PROBATION_S + 1) == 0


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from("abc")), max_size=40))
def test_schedules(steps: list[tuple[float, str]]) -> None:
    quarantine, now_s = GpuQuarantine(), 0.0
    losses: list[tuple[float, str]] = []
    has_begun = False
    for pause_s, model in steps:
        now_s += pause_s
        was_left_s = quarantine.left_s("A", now_s)
        begins = quarantine.lost("A", model, now_s)
        losses.append((now_s, model))
        recent = [name for at_s, name in losses if now_s - at_s <= WITHIN_S]
        assert 0 <= quarantine.left_s("A", now_s) <= LONGEST_PAUSE_S
        if begins:
            assert was_left_s == 0
            assert quarantine.left_s("A", now_s) > 0
            assert has_begun or (len(recent) >= MAX_LOSSES and len(set(recent)) >= MIN_MODELS)
        has_begun = has_begun or begins
