"""shoal/recording_settings.py: what --record-config takes, and the sentences for what it does not."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.recording_settings import RecordLimits, RecordRule, read_settings


def test_settings_are_read() -> None:
    given = [
        ("models", "a*, b"),
        ("sample", "10%"),
        ("max-size", "1.5GiB"),
        ("max-age", "2h"),
        ("redact", "X,id"),
        ("headers", "Trace-Id"),
    ]
    rule, limits = read_settings(given)
    assert rule == RecordRule(("a*", "b"), 0.1)
    assert limits == RecordLimits(3 << 29, 7200.0, ("X", "id"), ("trace-id",))
    assert [rule.concerns(name) for name in ("abc", "b", "bc")] == [True, True, False]
    assert read_settings([]) == (RecordRule(), RecordLimits())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sample", "1.5", "from 0 to 1"),
        ("sample", "-1", "from 0 to 1"),
        ("sample", "half", "from 0 to 1"),
        ("max-size", "2 parsecs", "at least 16MiB"),
        ("max-size", "1MiB", "at least 16MiB"),
        ("max-age", "soon", "s, m, h or d"),
        ("headers", "a header", "'a header' is no name of a header"),
        ("colour", "red", "there is no setting 'colour'"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        read_settings([(name, text)])
