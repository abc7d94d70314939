"""Progress: lines in the log while it takes long, an end where nothing comes any more. The clock is handed in."""

import logging
from types import SimpleNamespace

import pytest

from shoal.errors import UnavailableError
from shoal.repository.cloud_progress import CopyProgress


def test_it_reports_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    progress = CopyProgress("model 'm' from s3://b", 480_000_000, 60, now_s=100)
    callback, another = progress.watch(SimpleNamespace(value=0)), progress.watch(SimpleNamespace(value=0))
    with caplog.at_level(logging.INFO, "shoal"):
        for now_s, nbytes in ((105, 1), (110, 100_000_000), (119, 200_000_000), (120, 300_000_000)):
            callback.value, another.value = nbytes, nbytes // 10
            progress.look(now_s)
    assert [record.getMessage() for record in caplog.records] == [
        "copying model 'm' from s3://b: 110.0 of 480.0 MB, 11.0 MB/s",
        "copying model 'm' from s3://b: 330.0 of 480.0 MB, 16.5 MB/s",
    ]
    assert progress.summary(120) == "copied model 'm' from s3://b: 330.0 of 480.0 MB, 16.5 MB/s in 20.0 s"


def test_what_stands_still_is_given_up_and_every_byte_counts() -> None:
    progress = CopyProgress("model 'm' from s3://b", 9_000_000, stall_s=60, now_s=0)
    callback = progress.watch(SimpleNamespace(value=0))
    progress.look(60)
    callback.value = 1
    progress.look(100)
    callback.value = 0  # tried again from the start
    progress.look(160)
    progress.look(220)
    with pytest.raises(UnavailableError) as refusal:
        progress.look(220.1)
    assert str(refusal.value) == (
        "the copy of model 'm' from s3://b stands still: no byte for 60 s after 0.0 of 9.0 MB; "
        "check the network, it is tried again"
    )


@pytest.mark.parametrize(("stall_s", "look_s"), [(60, 0.25), (0.5, 0.125)])
def test_it_looks_often_enough_for_stalls_and_for_objects_without_end(stall_s: float, look_s: float) -> None:
    assert CopyProgress("", 0, stall_s, 0).look_s == look_s
