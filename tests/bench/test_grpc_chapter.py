"""The chapter on gRPC: targets, crowded connections, and who is measured under what."""

import pytest

from bench import grpc_chapter
from bench.__main__ import parse_arguments
from bench.document import Conditions
from bench.grpc_chapter import PEERS, WORKLOADS
from bench.results import Row, Sample

SHOAL, COMPILED, TRITON = PEERS
NAMED = {each.name: each for each in WORKLOADS}


def sample(requests_per_s: float, cpu_us: float = 60, p50_us: float = 1000, errors: int = 0) -> Sample:
    """A round's figures."""
    return Sample(requests_per_s, p50_us, 9000, cpu_us, 1 << 20, 1.0, errors, 0.04, {}, 250_000, 80.0, 120.0)


def rows() -> list[Row]:
    """Shoal and Triton, two rounds each; Triton could not be measured with large tensors."""
    return [
        Row(SHOAL, NAMED["grpc-c1"], [sample(1000, p50_us=700), sample(1000, p50_us=800)]),
        Row(SHOAL, NAMED["grpc-c16"], [sample(9000), sample(7000)]),
        Row(SHOAL, NAMED["grpc-streams"], [sample(10_000), sample(10_000, errors=3)]),
        Row(SHOAL, NAMED["grpc-large"], [sample(300)]),
        Row(TRITON, NAMED["grpc-c1"], [sample(1000), sample(1000)]),
        Row(TRITON, NAMED["grpc-c16"], [sample(2000), sample(2000)]),
        Row(TRITON, NAMED["grpc-large"], [], "it ended"),
    ]


def test_a_target_is_met_where_every_round_meets_it() -> None:
    assert grpc_chapter.targets(rows()).splitlines()[2:] == [
        "| 16 floats, 16 connections | requests/s | 8,000 | 2,000 | 4.00 | ≥ 3 × | yes |",
        "| 16 floats, 16 connections | CPU µs/request | 60 | 60 | 1.00 | ≤ 70 | yes |",
        "| 16 floats, 1 connection | p50 ms | 0.75 | 1.00 | 0.75 | ≤ 0.7 × | in some rounds |",
        "| 602 KB in and out, 8 connections | requests/s | 300 | – | – | ≥ 1.5 × | not measured |",
        "| 16 floats, 100 connections with 100 calls each | failed requests | 3 | – | – | ≤ 0 | in some rounds |",
    ]


def test_the_slowest_of_many_connections_and_calls_is_told() -> None:
    (line,) = grpc_chapter.streams(rows()).splitlines()[2:]
    assert line == "| 16 floats, 100 connections with 100 calls each | 10,000 | 80.0 | 120.0 | 1.0 | 250.0 | 3 |"
    assert grpc_chapter.streams(rows()[:2]) == ""


def test_the_chapter_names_its_conditions() -> None:
    where = Conditions(4, 3, ["A CPU, 2 cores"], "h2load 1.52.0", [("Shoal", "shoal 0.1.0", "About Shoal.")])
    text = grpc_chapter.markdown(rows(), where)
    for part in ("3 rounds of 4 s", "- A CPU, 2 cores\n", "(h2load 1.52.0, one", grpc_chapter.targets(rows())):
        assert part in text


def test_the_crowd_meets_our_own_http2_alone() -> None:
    assert [peer.name for peer in PEERS if grpc_chapter.is_measured(peer, NAMED["grpc-streams"])] == [
        "shoal",
        "compiled",
    ]
    assert all(grpc_chapter.is_measured(peer, NAMED["grpc-c16"]) for peer in PEERS)


def test_grpc_has_workloads_and_servers_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_arguments(["--grpc", "--workload", "grpc-c*", "--peer", "triton"])
    assert [each.name for each in options.workloads] == ["grpc-c1", "grpc-c16"]
    assert options.peers == [TRITON]
    assert [each.name for each in parse_arguments(["--grpc", "--quick"]).workloads] == ["grpc-c16"]
    with pytest.raises(SystemExit):
        parse_arguments(["--workload", "grpc-c16"])
    assert "no workload is called 'grpc-c16'; there are json-c1" in capsys.readouterr().err
