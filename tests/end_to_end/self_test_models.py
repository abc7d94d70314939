"""Models without inputs, which test themselves where they run; and one that they call, `double`.

Each method `test_…` of such a model is a test; its answer says what has gone wrong.
"""

from pathlib import Path
from textwrap import dedent

HEAD = """
import json
import traceback
import numpy as np
import triton_python_backend_utils as pb_utils

"""
#: Runs the method of the request's parameter `test`; the output is "" or what it has raised.
SELF_TEST = """

class TritonPythonModel(Tests):
    def execute(self, requests):
        return [self.run(json.loads(request.parameters())) for request in requests]

    def run(self, parameters):
        told = ""
        try:
            getattr(self, parameters.pop("test"))(**parameters)
        except Exception:
            told = traceback.format_exc()
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([told], object))])
"""
OUTPUT = 'output { name: "TOLD" data_type: TYPE_STRING dims: 1 }'
PLAIN = """
class Tests:
    def test_nothing(self):
        pass
"""
#: What each argument may be, and which exception says so; pybind's rules, which Triton's stub has.
ARGUMENTS = """
import unittest

X = pb_utils.Tensor("X", np.ones(1, np.float32))


class Tests(unittest.TestCase):
    def refuse(self, exception, make, *wrong, **keywords):
        with self.assertRaises(exception, msg=f"{make} {wrong} {keywords}") as caught:
            make(*wrong, **keywords)
        return str(caught.exception)

    def test_requests(self):
        def make(**given):
            return pb_utils.InferenceRequest(
                **{"inputs": [X], "model_name": "double", "requested_output_names": ["Y"], **given})

        for name in ("inputs", "model_name", "requested_output_names", "correlation_id", "request_id", "model_version",
                     "flags", "timeout", "preferred_memory", "trace"):
            self.refuse(TypeError, make, **{name: None})
        for name, wrong in {
            "inputs": [3], "requested_output_names": [None], "model_name": 5, "request_id": 5, "model_version": "1",
            "flags": 1.5, "timeout": "1", "preferred_memory": 0, "trace": "", "parameters": 7, "unknown": 1,
        }.items():
            self.refuse(TypeError, make, **{name: wrong})
        for name, wrong in {"inputs": X, "requested_output_names": "Y", "flags": -1, "timeout": -1}.items():
            self.refuse(TypeError, make, **{name: wrong})
        self.refuse(TypeError, make, inputs=[X.as_numpy()])
        self.refuse(TypeError, make, inputs=[np.ones(2)])
        told = self.refuse(pb_utils.TritonModelException, make, inputs=[None], request_id="7")
        assert told.startswith("Input tensor for request with id '7' and model name 'double' should not be empty.")
        told = self.refuse(pb_utils.TritonModelException, make, requested_output_names=[""])
        assert told.startswith("Requested output name for request with id '' and model name 'double' should not be em")
        told = self.refuse(pb_utils.TritonModelException, make, correlation_id=1.5)
        assert told == "Correlation ID must be integer or string"
        for wrong in (-1, 1 << 64):
            self.refuse(TypeError, make, correlation_id=wrong)
        make(inputs=[], requested_output_names=(), parameters=None, model_version=np.int64(1))
        self.refuse(TypeError, make().set_flags, None)
        self.refuse(TypeError, make().set_release_flags, None)

    def test_responses(self):
        told = self.refuse(pb_utils.TritonModelException, pb_utils.InferenceResponse, output_tensors=[None])
        assert told.startswith("Output tensor for inference response should not be empty.")
        for wrong in (None, X, [3], "X"):
            self.refuse(TypeError, pb_utils.InferenceResponse, output_tensors=wrong)
        self.refuse(TypeError, pb_utils.InferenceResponse, [X], error="no")
        assert pb_utils.InferenceResponse((X,)).output_tensors() == [X]

    def test_tensors(self):
        x = np.ones(1, np.float32)
        for wrong in ((None, x), (5, x), ("X", None), ("", None), ("X", {}), ("X", X)):
            self.refuse(TypeError, pb_utils.Tensor, *wrong)
        self.refuse(pb_utils.TritonModelException, pb_utils.Tensor, "", x)
        self.refuse(TypeError, pb_utils.Tensor.from_dlpack, None, x)
        for wrong in (("X", None), ("", None)):
            self.refuse(pb_utils.TritonModelException, pb_utils.Tensor.from_dlpack, *wrong)

    def test_logs(self):
        logger = pb_utils.Logger
        for level in (None, 1, "LOUD"):
            self.refuse(TypeError, logger.log, "message", level)
        for method in (logger.log, logger.log_info, logger.log_warn, logger.log_error, logger.log_verbose):
            self.refuse(TypeError, method, None)
            self.refuse(TypeError, method, 5)
        logger.log("level unspecified")
        logger.log_info(message="by its name")

    def test_errors(self):
        self.refuse(TypeError, pb_utils.TritonError, None)
        self.refuse(TypeError, pb_utils.TritonError, "no", None)
        self.refuse(TypeError, pb_utils.TritonError, "no", 99)

    def test_metrics(self):
        family = pb_utils.MetricFamily
        self.refuse(TypeError, family, name=None, description="d", kind=family.COUNTER)
        self.refuse(TypeError, family, name="n", description=None, kind=family.COUNTER)
        self.refuse(TypeError, family, name="n", description="d", kind=None)
        self.refuse(TypeError, family, name="n", description="d", kind="COUNTER")
        gauge = family(name="arguments", description="d", kind=family.GAUGE)
        metric = gauge.Metric()
        for wrong in (None, "1", [1], 10**400):
            self.refuse(TypeError, metric.set, wrong)
            self.refuse(TypeError, metric.increment, wrong)
        metric.set(np.float32(2))
        assert metric.value() == 2

    def test_model_control(self):
        for wrong in (None, 5):
            self.refuse(TypeError, pb_utils.is_model_ready, wrong)
            self.refuse(TypeError, pb_utils.load_model, wrong)
            self.refuse(TypeError, pb_utils.unload_model, wrong)
        self.refuse(TypeError, pb_utils.load_model, "double", None)
        self.refuse(TypeError, pb_utils.is_model_ready, "double", 1)

    def test_names_may_be_bytes(self):
        x = pb_utils.Tensor(b"X", np.ones(1, np.float32))
        assert x.name() == "X"
        response = pb_utils.InferenceRequest(
            model_name=b"double", inputs=[x], requested_output_names=[b"Y"], request_id=b"id").exec()
        assert not response.has_error(), response.error().message()
        assert response.output_tensors()[0].as_numpy().tolist() == [2]
        assert pb_utils.is_model_ready(b"double", b"1")
        assert pb_utils.TritonError(b"no").message() == "no"
        pb_utils.Logger.log_info(b"as bytes")
        family = pb_utils.MetricFamily(b"named_by_bytes", b"d", pb_utils.MetricFamily.GAUGE)
        assert family.Metric({"a": "b"}).value() == 0
"""
#: Forks, before and after it has called another model itself, and calls in the children.
FORKS = """
import multiprocessing
import os

HELD = []


def call(value):
    HELD.clear()  # the parent's, in its children: not theirs to release
    request = pb_utils.InferenceRequest(
        model_name="double", inputs=[pb_utils.Tensor("X", np.full(20_000, value, np.float32))],
        requested_output_names=["Y"])
    response = request.exec()
    assert not response.has_error(), response.error().message()
    assert len(set(response.output_tensors()[0].as_numpy())) == 1
    return os.getpid(), float(response.output_tensors()[0].as_numpy()[0])


class Tests:
    def call_in_children(self):
        with multiprocessing.get_context("fork").Pool(3) as pool:
            pids, found = zip(*pool.map(call, range(9), chunksize=3))
        assert list(found) == [2.0 * value for value in range(9)] and os.getpid() not in pids

    def test_forks(self):
        self.call_in_children()
        assert call(1) == (os.getpid(), 2.0)
        self.call_in_children()
        assert call(1) == (os.getpid(), 2.0)

    def test_forks_while_it_holds_a_response(self):
        request = pb_utils.InferenceRequest(
            model_name="double", inputs=[pb_utils.Tensor("X", np.full(20_000, 4, np.float32))],
            requested_output_names=["Y"])
        response = request.exec()
        HELD.append(response)
        self.call_in_children()
        assert HELD.pop() is response and set(response.output_tensors()[0].as_numpy()) == {8.0}
"""
#: Forks children that leave each method as the parameters say; its answer is the status with which each has ended.
LEAVES = """
import os


def leave(how):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "return":
        return
    raise eval(how)


class TritonPythonModel:
    def initialize(self, arguments):
        self.statuses = [leave("return"), leave("SystemExit(4)")]

    def is_ready(self):
        self.statuses.append(leave("SystemExit(5)"))
        return True

    def execute(self, requests):
        how = json.loads(requests[0].parameters())["how"]
        senders = [request.get_response_sender() for request in requests] if how == "send" else []
        if not senders:
            self.statuses.append(leave(how))
        elif child := os.fork():
            self.statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert not requests[0].is_cancelled()
        told = pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([str(self.statuses)], object))])
        self.statuses = []
        for sender in senders:
            sender.send(told, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None if senders else [told]
"""
#: Custom metrics as Triton's QA has them: what /metrics says is looked up while `execute` runs.
METRICS = """
import gc
import http.client
import unittest

Family = pb_utils.MetricFamily
KEPT = Family("kept_to_the_end", "made with the module", Family.COUNTER)
KEPT.Metric().increment(1)


def scraped(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    assert "kept_to_the_end 1" in lines, lines
    return [line for line in lines if "self_test" in line]


class Tests(unittest.TestCase):
    def test_what_is_set_is_seen_at_once(self, port):
        family = Family("self_test_gauge", "a gauge", Family.GAUGE)
        gauge = family.Metric({"a": "b"})
        for value in range(10):
            gauge.set(value)
            self.assertEqual(scraped(port)[2:], [f'self_test_gauge{{a="b"}} {value}'])
        histogram_family = Family("self_test_histogram", "a histogram", Family.HISTOGRAM)
        histogram = histogram_family.Metric(buckets=[1])
        self.assertIn("self_test_histogram_count 0", scraped(port))
        histogram.observe(0.5)
        self.assertIn('self_test_histogram_bucket{le="1"} 1', scraped(port))

    def test_the_first_description_is_kept(self, port):
        first = Family("self_test_described", "first description", Family.COUNTER)
        second = Family("self_test_described", "second description", Family.COUNTER)
        self.assertEqual(second.Metric().value(), 0)
        del first
        self.assertIn("# HELP self_test_described first description", scraped(port))
        with self.assertRaises(pb_utils.TritonModelException):
            Family("self_test_described", "first description", Family.GAUGE)

    def test_metrics_go_with_their_family(self, port):
        family = Family("self_test_deleted", "deleted", Family.GAUGE)
        gauge, other = family.Metric({"a": "b"}), family.Metric({"a": "c"})
        gauge.set(3)
        del other  # is the family's
        self.assertIn('self_test_deleted{a="c"} 0', scraped(port))
        del family
        for call in (gauge.value, lambda: gauge.set(1), lambda: gauge.increment(1)):
            with self.assertRaises(pb_utils.TritonModelException) as caught:
                call()
            self.assertIn("Invalid metric operation as the corresponding 'MetricFamily' has been deleted.",
                          str(caught.exception))
        self.assertEqual(scraped(port), [])
        again = Family("self_test_deleted", "again", Family.COUNTER)
        self.assertEqual(again.Metric({"a": "b"}).value(), 0)
        self.assertIn('self_test_deleted{a="b"} 0', scraped(port))
"""
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() * 2)])
                for request in requests]
"""
X_TO_Y = """
    input { name: "X" data_type: TYPE_FP32 dims: -1 }
    output { name: "Y" data_type: TYPE_FP32 dims: -1 }
"""


def add_model(repository: Path, name: str, code: str, config: str | None) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(HEAD + dedent(code))
    if config is not None:
        (directory.parent / "config.pbtxt").write_text(f'backend: "python" {config}')
