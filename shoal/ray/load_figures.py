"""Queue age and utilisation of a server, from the text of its /metrics. Pure."""

import re
from collections import defaultdict
from typing import NamedTuple

from shoal.ray.scaling import Figures

_SAMPLE = re.compile(
    r'^(?P<name>shoal_queue_oldest_age_seconds|shoal_instance_busy_seconds_total|shoal_instance_executing_seconds)'
    r'\{(?P<labels>.*)\} (?P<value>[-+.0-9e]+)$',
    re.MULTILINE,
)  # fmt: skip
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Model = tuple[str, str]  # name and version
Instance = tuple[str, str, str]  # model, version and the instance's name


class Sample(NamedTuple):
    """A server's counters at a time."""

    now_ns: int
    queue_age_s: float  # of the model whose oldest request has waited longest
    busy_s: dict[Instance, float]  # time spent on batches since the instance's start, the one being executed included


def read_sample(text: str, now_ns: int) -> Sample:
    """The counters in the text of /metrics, which was read at `now_ns` of the monotonic clock."""
    queue_age_s, busy_s = 0.0, defaultdict[Instance, float](float)
    for found in _SAMPLE.finditer(text):
        labels = dict(_LABEL.findall(found["labels"]))
        value = float(found["value"])
        if found["name"] == "shoal_queue_oldest_age_seconds":
            queue_age_s = max(queue_age_s, value)
        else:
            busy_s[labels["model"], labels["version"], labels["model_instance"]] += value
    return Sample(now_ns, queue_age_s, dict(busy_s))


def figures_between(before: Sample, now: Sample) -> Figures:
    """The queue age of now, and the utilisation since `before` of the model whose instances were busiest.

    The counter of an instance that is new, or was started again, began after `before`: all that it counts is new.
    """
    elapsed_s = (now.now_ns - before.now_ns) / 1e9
    fractions = defaultdict[Model, list[float]](list)
    for instance, busy_s in now.busy_s.items():
        earlier_s = before.busy_s.get(instance, 0.0)
        spent_s = busy_s - earlier_s if busy_s >= earlier_s else busy_s
        fractions[instance[:2]].append(min(1.0, spent_s / elapsed_s) if elapsed_s > 0 else 0.0)
    utilisation = max((sum(each) / len(each) for each in fractions.values()), default=0.0)
    return Figures(now.queue_age_s, utilisation)
