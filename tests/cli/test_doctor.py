"""`shoal doctor`: what the facts about a machine mean, and that this machine's can be read."""

import errno
import json
import os
import socket
from typing import Any

import pytest

from shoal.cli import main
from shoal.cli.doctor import BAD, GOOD, NOTE, Row, as_text, examine
from shoal.cli.machine_facts import Framework, MachineFacts, read_facts
from shoal.supervisor.memory import available_memory

MIB = 1024**2
HEALTHY = MachineFacts(
    shoal="0.1.0",
    python="CPython 3.11.2 with PGO (/usr/bin/python3.11)",
    is_profile_guided=True,
    frameworks={"onnxruntime": Framework("onnxruntime", "1.32.0", "onnx"), "fil": Framework("treelite", "", "fil")},
    kernel="6.1.0",
    kernel_lack="",
    cores=(0, 1, 2, 3),
    cpu_quota=None,
    available_nbytes=8192 * MIB,
    overcommit=0,
    dev_shm_nbytes=4096 * MIB,
    descriptors=1048576,
    low_limit="",
    clock_ns=40,
    gpus="none",
    ports={"http": (8000, 0), "grpc": (8001, 0), "metrics": (8002, 0)},
    is_served=False,
)


def rows(**changed: Any) -> dict[str, Row]:
    """The rows about a healthy machine with these facts changed, by subject."""
    return {row.subject: row for row in examine(HEALTHY._replace(**changed))}


def test_nothing_is_wrong_with_a_healthy_machine() -> None:
    assert {row.state for row in rows().values()} == {GOOD}
    assert rows()["backend onnxruntime"].found == "onnxruntime 1.32.0"
    assert rows()["backends"].found == "not installed: fil (pip install 'shoal[fil]')"
    assert rows()["cores"].found == "4 (0-3)"


@pytest.mark.parametrize(
    ("subject", "changed", "found", "advice"),
    [
        ("python", {"is_profile_guided": False}, "CPython 3.11.2", "SHOAL_PYTHON=/usr/bin/python3"),
        ("cores", {"cpu_quota": 1.5}, "4 (0-3), of which the control group grants 1.5", "cpuset"),
        ("memory", {"available_nbytes": 500 * MIB}, "500 MiB available", "--shm-oversize-mib"),
        ("overcommit", {"overcommit": 2}, "vm.overcommit_memory=2", "sysctl vm.overcommit_memory=0"),
        ("/dev/shm", {"dev_shm_nbytes": 64 * MIB}, "64 MiB free", "--shm-size=1g"),
        ("/dev/shm", {"dev_shm_nbytes": None}, "missing or not writable", "memfd_create"),
        ("descriptors", {"descriptors": 1024}, "1024 (hard limit)", "LimitNOFILE="),
        ("clock", {"clock_ns": 900}, "900 ns a look", "available_clocksource"),
    ],
)
def test_a_note_says_what_to_do(subject: str, changed: dict[str, Any], found: str, advice: str) -> None:
    row = rows(**changed)[subject]
    assert row.state == NOTE
    assert found in row.found
    assert advice in row.advice


def test_a_quota_that_covers_the_cores_is_none() -> None:
    assert rows(cpu_quota=4.0)["cores"].state == GOOD


def test_a_port_is_free_served_or_taken() -> None:
    taken = {**HEALTHY.ports, "http": (8000, errno.EADDRINUSE), "grpc": (8001, errno.EADDRINUSE)}
    assert rows(ports=taken)["http port"] == Row(
        BAD, "http port", "8000: Address already in use", "name another: --http-port=<port>"
    )
    served = rows(ports=taken, is_served=True)
    assert served["http port"].found == "8000: a server answers there (shoal models)"
    assert served["grpc port"].state == BAD


def test_without_loopback_another_port_is_no_help() -> None:
    row = rows(ports={**HEALTHY.ports, "grpc": (8001, errno.EADDRNOTAVAIL)})["grpc port"]
    assert (row.state, row.found) == (BAD, "8001: Cannot assign requested address")
    assert row.advice == "no network interface has 127.0.0.1: ip link set lo up, or another --grpc-address=<address>"


def test_advice_stands_below_what_was_found() -> None:
    printed = as_text([Row(GOOD, "shoal", "0.1.0"), Row(NOTE, "clock", "900 ns a look", "look there")])
    assert printed == (
        "STATE  SUBJECT  FOUND\n"
        "ok     shoal    0.1.0\n"
        "note   clock    900 ns a look\n"
        "                → look there"
    )  # fmt: skip


def test_without_proc_the_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/meminfo")

    monkeypatch.setattr(available_memory, "machine_nbytes", missing)
    assert 0 < read_facts({"http": 0}, {}).available_nbytes < 1 << 50


def test_this_machine_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free.bind(("127.0.0.1", 0))
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        flags = f"--http-port={other}", f"--grpc-port={port}", f"--metrics-port={other}", "--json"
        assert main(["doctor", *flags]) == 2
    found = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["grpc port"]["state"] == BAD
    assert found["http port"]["found"] == f"{other} is free"
    assert found["backend onnxruntime"]["found"].startswith("onnxruntime")
    assert int(found["cores"]["found"].split()[0]) >= 1
