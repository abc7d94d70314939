"""The order of an ensemble's steps, over generated graphs and schedules."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.ensemble import Graph
from tests.batcher.scheduling.ensemble_graphs import Run, run_any
from tests.batcher.scheduling.many_seeds import FIRST, Told, numbers_of, run_seeds

NUM_SEEDS = 2000


def graph(*steps: tuple[str, str]) -> Graph:
    """Steps as "tensors read", "tensors written", one letter each."""
    return Graph(
        (dict(zip(reads, reads, strict=True)), dict(zip(writes, writes, strict=True))) for reads, writes in steps
    )


def test_a_chain_runs_step_by_step() -> None:
    run = Run(graph(("x", "a"), ("a", "b"), ("b", "y")), "y")
    assert run.begin("x") == [0]
    assert run.end(0, "a") == ([1], [])
    assert run.end(1, "b") == ([2], [0])
    assert not run.is_over
    assert run.missing == {"y"}
    assert run.end(2, "y") == ([], [1])
    assert run.is_over
    assert not run.missing


def test_steps_that_do_not_depend_on_each_other_run_at_once() -> None:
    run = Run(graph(("ab", "y"), ("x", "a"), ("x", "b")), "y")
    assert run.begin("x") == [1, 2]
    assert run.end(2, "b") == ([], [])
    assert run.end(1, "a") == ([0], [])
    assert run.end(0, "y") == ([], [1, 2])


def test_steps_without_a_requested_output_do_not_run() -> None:
    diamond = graph(("x", "a"), ("x", "b"), ("a", "y"), ("b", "z"))
    run = Run(diamond, "z")
    assert run.begin("x") == [1]
    assert run.end(1, "b") == ([3], [])
    assert run.end(3, "z") == ([], [1])
    assert run.is_over
    assert diamond.needed("yz") == {0, 1, 2, 3}


def test_a_result_with_an_output_in_it_stays() -> None:
    run = Run(graph(("x", "ay"), ("a", "z")), "yz")
    assert run.begin("x") == [0]
    assert run.end(0, "ay") == ([1], [])
    assert run.end(1, "z") == ([], [])


def test_a_tensor_that_was_not_written_leaves_outputs_missing() -> None:
    run = Run(graph(("x", "ab"), ("a", "y"), ("b", "z")), "yz")
    assert run.begin("x") == [0]
    assert run.end(0, "a") == ([1], [])
    assert run.end(1, "y") == ([], [])
    assert run.is_over
    assert run.missing == {"z"}


def test_a_step_that_reads_a_tensor_twice_starts_once() -> None:
    run = Run(Graph([({"A": "x", "B": "x"}, {"Y": "y"})]), ["y"])
    assert run.begin(["x"]) == [0]


def test_seeded_graphs() -> None:
    told = run_seeds(run_any, range(FIRST, FIRST + NUM_SEEDS))
    assert set(told) == {"alone", "together", "let go", "answers"}


@settings(max_examples=100)
@given(st.binary(min_size=14, max_size=98))
def test_generated_graphs(some_bytes: bytes) -> None:
    run_any(numbers_of(some_bytes), Told())
