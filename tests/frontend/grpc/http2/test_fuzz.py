"""A short run of fuzz.py, with the same seeds each time, so that a failure comes from the change under test."""

from tests.frontend.grpc.http2.fuzz import run


def test_clients_that_break_rules_and_wires() -> None:
    ends = {run(seed) for seed in range(2000)}
    assert ends == {"open", "failed", "GOAWAY", "RST_STREAM"}
