"""The process of a handler: working directory, search path, environment, log, and the sink of its metrics.

They are all as in TorchServe's workers, since handlers open files of the archive by relative paths, import siblings,
and log by the root logger.
"""

import logging
import os
import re
import sys
import threading
from typing import Any

from triton_python_backend_utils.errors import TritonModelException
from triton_python_backend_utils.metrics import Metric, MetricFamily
from ts.metrics.caching_metric import Sample
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore

from shoal.log import PatientHandler
from shoal.workers.backends.python import blas
from shoal.workers.backends.torchserve.archive import Archive
from shoal.workers.backends.torchserve.import_path import HANDLER_IMPORTS

_log = logging.getLogger(__name__)

#: The upper bounds of a histogram's buckets, equal to those of Prometheus's client for Java, which TorchServe uses.
BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_KINDS = {
    MetricTypes.COUNTER: MetricFamily.COUNTER,
    MetricTypes.GAUGE: MetricFamily.GAUGE,
    MetricTypes.HISTOGRAM: MetricFamily.HISTOGRAM,
}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


def enter(archive: Archive, num_cores: int) -> None:
    """Change settings of the interpreter, which runs only this archive's handler."""
    sys.dont_write_bytecode = True  # bytecode beside a handler would look like a change of the model
    os.chdir(archive.directory)
    first = [archive.directory, HANDLER_IMPORTS]
    sys.path[:] = first + [path for path in sys.path if path and path not in first]
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, path.split(os.pathsep)), archive.directory])
    os.environ["TS_DECODE_INPUT_REQUEST"] = "true" if archive.decodes_inputs else "false"
    for variable in ("TS_IPEX_ENABLE", "TS_IPEX_GPU_ENABLE"):
        os.environ.setdefault(variable, "false")
    handler = PatientHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    blas.use_threads(num_cores)
    torch: Any = sys.modules.get("torch")
    if torch is not None:  # imported by the zygote: OpenMP has read the zygote's environment, not this worker's
        torch.set_num_threads(num_cores)


def metrics_store(archive: Archive, metrics: "HandlerMetrics") -> MetricsStore:
    """`context.metrics` of a handler, with the metrics that the server's metrics.yaml declares."""
    store = MetricsStore(model_name=archive.name, sink=metrics.add)
    for kind, name, unit, dimensions in archive.metrics:
        store.add_metric_to_cache(name, unit, dimensions, MetricTypes(kind))
    return store


class HandlerMetrics:
    """The sink of a handler's metrics: they become custom metrics of the model, as those of a Python model are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # These fields are changed by add.
        self._families: dict[str, MetricFamily] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Metric | None] = {}

    def add(self, sample: Sample) -> None:
        """Record a value. A metric whose name or labels Prometheus does not allow is logged once, and its values are
        left out."""
        key = (sample.name, sample.dimensions)
        with self._lock:
            if key not in self._metrics:
                self._metrics[key] = self._make(sample)
            metric = self._metrics[key]
        if metric is None:
            return
        try:
            if sample.metric_type is MetricTypes.COUNTER:
                metric.increment(sample.value)
            elif sample.metric_type is MetricTypes.GAUGE:
                metric.set(sample.value)
            else:
                metric.observe(sample.value)
        except (TypeError, TritonModelException) as error:
            _log.error("a value of the handler's metric '%s' is left out: %s", sample.name, error)

    def _make(self, sample: Sample) -> Metric | None:
        name = _NOT_IN_NAMES.sub("_", sample.name)
        kind = _KINDS[sample.metric_type]
        try:
            family = self._families.get(name)
            if family is None:
                text = f"Torchserve prometheus {sample.metric_type.value} metric with unit: {sample.unit}"
                family = self._families[name] = MetricFamily(name, text, kind)
            labels = {_NOT_IN_NAMES.sub("_", label): value for label, value in sample.dimensions}
            return family.Metric(labels, buckets=BUCKETS if sample.metric_type is MetricTypes.HISTOGRAM else None)
        except (TypeError, TritonModelException) as error:
            _log.error("the handler's metric '%s' is left out: %s", sample.name, error)
            return None
