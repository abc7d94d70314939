"""shoal/ray/load_figures.py: queue age and utilisation, from the text of /metrics."""

from shoal.ray.load_figures import Sample, figures_between, read_sample
from shoal.ray.scaling import Figures

S = 10**9


def text(age: float, **busy: float) -> str:
    lines = [
        "# TYPE shoal_queue_oldest_age_seconds gauge",
        f'shoal_queue_oldest_age_seconds{{model="a",version="1"}} {age}',
        'shoal_queue_oldest_age_seconds{model="b",version="1"} 0',
    ]
    for instance, seconds in busy.items():
        labels = f'model="{instance[0]}",version="1",model_instance="{instance}",device="CPU"'
        lines.append(f"shoal_instance_busy_seconds_total{{{labels}}} {seconds}")
    return "\n".join(lines) + "\n"


def test_the_busiest_model_counts_by_the_mean_of_its_instances() -> None:
    before = read_sample(text(0, a_0=1, a_1=1, b_0=5), 10 * S)
    now = read_sample(text(0.25, a_0=3, a_1=2, b_0=6), 12 * S)
    assert figures_between(before, now) == Figures(0.25, 0.75)


def test_a_batch_that_is_being_executed_counts() -> None:
    executing = 'shoal_instance_executing_seconds{model="a",version="1",model_instance="a_0"} 1.5\n'
    now = read_sample(text(0, a_0=2) + executing, 4 * S)
    assert figures_between(read_sample(text(0, a_0=2), 2 * S), now) == Figures(0, 0.75)


def test_an_instance_that_began_again_has_counted_since() -> None:
    before = read_sample(text(0, a_0=100), 0)
    assert figures_between(before, read_sample(text(0, a_0=1), 4 * S)) == Figures(0, 0.25)


def test_no_instance_is_busier_than_always() -> None:
    before = read_sample(text(0, a_0=0), 0)
    assert figures_between(before, read_sample(text(0, a_0=2.5), 2 * S)) == Figures(0, 1.0)


def test_a_server_without_models_is_idle_and_the_first_look_knows_no_utilisation() -> None:
    assert figures_between(Sample(0, 0.0, {}), Sample(S, 0.0, {})) == Figures(0, 0)
    first = read_sample(text(3, a_0=7), S)
    assert figures_between(first, first) == Figures(3, 0)


def test_labels_may_hold_anything() -> None:
    odd = 'shoal_queue_oldest_age_seconds{model="a\\"} 9,{",version="1"} 1e-3\n'
    assert read_sample(odd, 0).queue_age_s == 0.001
