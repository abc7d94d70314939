"""`--trace-config`: single values, and what they come to together."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.tracer.command_line import TraceFlagValue, parse, understand
from shoal.tracer.settings import OFF, TENSORS, TIMESTAMPS, TraceSetting

BATCHES = {"bsp_max_queue_size": "2048", "bsp_schedule_delay": "5000", "bsp_max_export_batch_size": "512"}


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("rate=5", ("", "rate", "5")),
        ("count=-1", ("", "count", "-1")),
        ("level=tensors", ("", "level", "tensors")),
        ("mode=OpenTelemetry", ("", "mode", "OpenTelemetry")),
        ("triton,file=/tmp/a=b,c", ("triton", "file", "/tmp/a=b,c")),
        ("TRITON,log-frequency=5", ("triton", "log-frequency", "5")),
        ("opentelemetry,url=http://a:4318/v1/traces", ("opentelemetry", "url", "http://a:4318/v1/traces")),
        ("opentelemetry,resource=a=b=c", ("opentelemetry", "resource", "a=b=c")),
    ],
)
def test_a_value(text: str, entry: TraceFlagValue) -> None:
    assert parse(text) == entry


FORMAT = "--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got "
MODES = 'invalid value for trace mode option: {}. Available options are "triton" and "opentelemetry"'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", FORMAT), ("rate", FORMAT + "rate"), ("rate=", FORMAT + "rate="), ("=5", FORMAT + "=5"),
        (",rate=5", FORMAT + ",rate=5"), ("triton,=5", FORMAT + "triton,=5"),
        ("jaeger,url=x", MODES.format("jaeger")), ("mode=jaeger", MODES.format("jaeger")),
        ("level=LOUD", "invalid value for trace level option: LOUD"),
        ("file=x", "unknown trace setting 'file'; expected one of rate, level, count, mode"),
        ("triton,rate=1", "unknown trace setting 'rate'; expected one of file, log-frequency"),
        ("rate=x", "expected an integer for rate, got 'x'"),
        ("rate=-1", "expected an integer from 0 to 2147483647 for rate, got -1"),
        ("count=-2", "expected an integer from -1 to 2147483647 for count, got -2"),
        ("opentelemetry,resource=a", "expected resource=<key>=<value>, got resource=a"),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the sentence is compared
        parse(text)
    assert str(error.value) == sentence


def test_nothing_said_is_tritons_default() -> None:
    config = understand((), {})
    assert (config.setting, config.options) == (TraceSetting(), {})
    assert config.resource == {"service.name": "triton-inference-server"}


def test_of_several_values_the_last_counts() -> None:
    said = ["rate=1", "triton,file=a", "rate=2", "count=3", "triton,log-frequency=4", "triton,file=b"]
    assert understand([parse(each) for each in said], {}).setting == TraceSetting(
        rate=2, count=3, log_frequency=4, file="b"
    )


@pytest.mark.parametrize(
    ("words", "level"),
    [
        (["TIMESTAMPS"], TIMESTAMPS), (["max"], TIMESTAMPS), (["tensors"], TENSORS), (["OFF"], OFF),
        (["tensors", "min", "TENSORS"], TIMESTAMPS | TENSORS), (["timestamps", "false"], OFF),
    ],
)  # fmt: skip
def test_levels_add_up(words: list[str], level: int) -> None:
    assert understand([("", "level", word) for word in words], {}).setting.level == level


def test_what_the_exporter_is_told() -> None:
    said = [
        "mode=opentelemetry", "opentelemetry,url=http://a", "opentelemetry,resource=service.name=mine",
        "opentelemetry,resource=team=b", "opentelemetry,bsp_schedule_delay=100",
    ]  # fmt: skip
    config = understand(
        [parse(each) for each in said], {"OTEL_BSP_SCHEDULE_DELAY": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "600"}
    )
    own = {"url": "http://a", "resource": "service.name=mine,team=b"}
    assert config.options == own | BATCHES | {"bsp_schedule_delay": "100", "bsp_max_queue_size": "600"}
    assert config.resource == {"service.name": "mine", "team": "b"}


def test_a_variable_that_makes_no_sense_is_named() -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        understand([("", "mode", "opentelemetry")], {"OTEL_BSP_MAX_QUEUE_SIZE": "many"})
    assert str(refusal.value) == (
        "--trace-config opentelemetry,bsp_max_queue_size or $OTEL_BSP_MAX_QUEUE_SIZE: "
        "expected an integer for bsp_max_queue_size, got 'many'"
    )
