"""What may stand behind a flag, and the sentence for what may not."""

from pathlib import Path

import pytest

from shoal.cli import values
from shoal.cli.values import ValueKind
from shoal.cloud_url import CloudUrl

MODES = values.choice("none", "poll", "ISO8601")
RESTRICTION = values.restriction("http-restricted-api", "api")
PROTOCOL = values.restriction("grpc-restricted-protocol", "protocol", "triton-grpc-protocol-")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *((values.BOOLEAN, text, True) for text in ("true", "1", "on", "True", "ON")),
        *((values.BOOLEAN, text, False) for text in ("false", "0", "off", "FALSE")),
        *((values.VERBOSITY, text, level) for text, level in (("true", 1), ("off", 0), ("0", 0), ("3", 3))),
        (values.INTEGER, "-1", -1),
        (values.INTEGER, "+7", 7),
        (values.NUMBER, "6.0", 6.0),
        (values.PORT_RANGE, "8081-9000", (8081, 9000)),
        (values.PORT_RANGE, "1-1", (1, 1)),
        (MODES, "Poll", "poll"),
        (MODES, "iso8601", "ISO8601"),
        (values.ANY_TEXT, "", ""),
        (values.REPOSITORY, "models/a b", Path("models/a b")),
        (values.REPOSITORY, "s3://bucket/a//b", CloudUrl("s3", "bucket", "a/b")),
        (values.BACKEND_SETTING, "onnxruntime,threads=2", ("onnxruntime", "threads", "2")),
        (values.BACKEND_SETTING, "default-max-batch-size=8", ("", "default-max-batch-size", "8")),
        (values.HOST_POLICY, "gpu_0,numa-node=1", ("gpu_0", "numa_node", 1)),
        (values.HOST_POLICY, "cpu,cpu-cores=0-1,4-4", ("cpu", "cpu_cores", (0, 1, 4))),
        (values.LIMIT, "R:4", ("R", 4, None)),
        (values.LIMIT, "R:4:1", ("R", 4, 1)),
        (values.PATTERN, "", ""),
        (values.PATTERN, "^x-|(id)", "^x-|(id)"),
        (RESTRICTION, "trace:Admin-Key=v", (("trace",), "Admin-Key", "v")),
        (RESTRICTION, "trace,model-config:k=a:b=c d", (("trace", "model-config"), "k", "a:b=c d")),
        (PROTOCOL, "trace,logging:k=v", (("trace", "logging"), "triton-grpc-protocol-k", "v")),
        (values.BACKEND_SETTING, "python,path=/a=b,c", ("python", "path", "/a=b,c")),
        (values.METRICS_SETTING, "histogram_latencies=true", ("histogram_latencies", True)),
        (values.METRICS_SETTING, "counter_latencies=false", ("counter_latencies", False)),
        (values.METRICS_SETTING, 'summary_quantiles="0.5:0.05,1:0"', ("summary_quantiles", ((0.5, 0.05), (1.0, 0.0)))),
    ],
)
def test_what_is_read(kind: ValueKind, text: str, value: object) -> None:
    read = kind.parse(text)
    assert (type(read), read) == (type(value), value) or isinstance(value, Path)
    assert read == value


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        (values.BOOLEAN, "yes", "invalid value for bool option: yes"),
        (values.BOOLEAN, "", "invalid value for bool option: "),
        (values.VERBOSITY, "-1", "expected 0 for no verbose messages, a level from 1 on, or a boolean, got -1"),
        (values.INTEGER, "1_000", "expected an integer, got '1_000'"),
        (values.INTEGER, "8.0", "expected an integer, got '8.0'"),
        (values.INTEGER, "9" * 30, f"expected an integer, got '{'9' * 30}'"),
        (values.NUMBER, "six", "expected a number, got 'six'"),
        (values.NUMBER, "nan", "expected a number, got 'nan'"),
        (values.NUMBER, "inf", "expected a number, got 'inf'"),
        (values.integer(1), "0", "expected an integer of 1 or more, got 0"),
        (MODES, "some", "expected one of none, poll, ISO8601, got 'some'"),
        (values.TEXT, "", "expected a value, got nothing"),
        (values.REPOSITORY, "", "expected a value, got nothing"),
        (
            values.REPOSITORY,
            "gs://",
            "'gs://' is no address of a model repository: it names no bucket; write gs://bucket/path",
        ),
        *(
            (
                values.BACKEND_SETTING,
                text,
                "--backend-config option format is '<backend name>,<setting>=<value>' or '<setting>=<value>'. "
                f"Got {text}",
            )
            for text in ("onnxruntime", "onnxruntime,threads", ",threads=2", "onnxruntime,=2", "threads=", "=2")
        ),
        *(
            (
                RESTRICTION,
                text,
                f"--http-restricted-api option format is '<config name>:<setting>=<value>'. Got {text}",
            )
            for text in ("trace", "trace:k", "trace=k:v", ":k=v", "trace:=v", "trace:k=")
        ),
        *(
            (RESTRICTION, f"{apis}:k=v", f"unknown restricted api '{wrong}'; there are health, metadata, "
             "inference, shared-memory, model-config, model-repository, statistics, trace, logging")
            for apis, wrong in (("model-reposit,health", "model-reposit"), ("health,", ""), ("Health", "Health"))
        ),
        (PROTOCOL, "trace", "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got trace"),
        (
            PROTOCOL,
            "trac:k=v",
            "unknown restricted protocol 'trac'; there are health, metadata, inference, shared-memory, model-config, "
            "model-repository, statistics, trace, logging",
        ),
        *(
            (RESTRICTION, f"trace:{key}=v", f"'{key}' cannot be a header's name: letters, digits and hyphens "
             "are, underscores are not")
            for key in ("a_b", "a b", "é", "a:b")
        ),
        *(
            (RESTRICTION, f"trace:k={value}", "the value of header 'k' must be printable and not begin or end "
             "with a space")
            for value in (" v", "v ", "a\nb", "\udcff")
        ),
        *(
            (
                values.HOST_POLICY,
                text,
                f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}",
            )
            for text in ("gpu_0", "gpu_0,numa-node", "gpu_0,numa-node=", ",numa-node=0", "numa-node=0")
        ),
        *(
            (
                values.GPU_LIMIT,
                text,
                "--model-load-gpu-limit option format is '<device_id>:<fraction>', a fraction from 0 to 1. "
                f"Got {text}",
            )
            for text in ("0.8", "0:", ":0.8", "a:0.8", "0:1.1", "0:-0.1", "0:nan", "-1:0.5")
        ),
        *(
            (
                values.GPU_POOL,
                text,
                "--cuda-memory-pool-byte-size option format is '<device_id>:<pool byte size>', two whole numbers. "
                f"Got {text}",
            )
            for text in ("64", "0:", ":64", "a:64", "0:-1", "0:1.5", "0:1:2")
        ),
        (values.HOST_POLICY, "p,numa-node=a", "Parsing 'numa-node' value: Can't parse 'a' to integer"),
        (values.HOST_POLICY, "p,cores=1", "there is no host policy setting 'cores'; there are numa-node and cpu-cores"),
        *(
            (
                values.HOST_POLICY,
                f"p,cpu-cores={text}",
                "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got "
                + text.rpartition(",")[2],
            )
            for text in ("1", "a-b", "3-1", "0-1,4", "0-99999999")
        ),
        (values.PATTERN, "a(", "'a(' is no regular expression: missing ), unterminated subpattern at position 1"),
        *(
            (
                values.METRICS_SETTING,
                text,
                "--metrics-config option format is '<setting>=<value>' or '<metric type>,<setting>=<value>'. "
                f"Got {text}",
            )
            for text in ("summary_latencies", "summary_latencies=", "=true")
        ),
        (
            values.METRICS_SETTING,
            "summary,latencies=true",
            "there is no setting 'summary,latencies'; there are summary_quantiles, counter_latencies, "
            "histogram_latencies, summary_latencies",
        ),
        (values.METRICS_SETTING, "counter_latencies=maybe", "invalid value for bool option: maybe"),
        (
            values.METRICS_SETTING,
            "summary_quantiles=0.5:0.1,0.9",
            "Invalid option: [0.9]. No ':' delimiter found. Expected format is <quantile>:<error>",
        ),
        (
            values.METRICS_SETTING,
            "summary_quantiles=99:0.1",
            "a quantile and its error lie between 0 and 1, got '99:0.1'",
        ),
        (values.METRICS_SETTING, "summary_quantiles=x:0.1", "expected a number, got 'x'"),
    ],
)  # fmt: skip
def test_what_is_not(kind: ValueKind, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^") as refusal:
        kind.parse(text)
    assert str(refusal.value) == sentence
