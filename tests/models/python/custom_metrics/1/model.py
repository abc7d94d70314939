import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts and measures what it is asked."""

    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.counter_family = pb_utils.MetricFamily(
            name="example_requests",
            description="Requests that the model has seen",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.counter = self.counter_family.Metric(labels=labels)

        self.gauge_family = pb_utils.MetricFamily(
            name="example_last_value", description="The value that came last", kind=pb_utils.MetricFamily.GAUGE
        )
        self.gauge = self.gauge_family.Metric(labels=labels)

        self.histogram_family = pb_utils.MetricFamily(
            name="example_values", description="All values", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        self.histogram = self.histogram_family.Metric(labels=labels, buckets=[1.0, 10.0, 100.0])

    def execute(self, requests):
        responses = []
        for request in requests:
            value = float(pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()[0])
            self.counter.increment(1)
            self.gauge.set(value)
            self.histogram.observe(value)
            count = pb_utils.Tensor("COUNT", np.array([self.counter.value()], dtype=np.float64))
            responses.append(pb_utils.InferenceResponse(output_tensors=[count]))
        return responses

    def finalize(self):
        self.counter = self.gauge = self.histogram = None
        self.counter_family = self.gauge_family = self.histogram_family = None
