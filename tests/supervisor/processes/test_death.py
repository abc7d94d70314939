"""death.py: what is said of a worker's end."""

import pytest

from shoal.placement import Placement
from shoal.reasons import DeathDetail, Reason
from shoal.supervisor.processes.death import Death, last_words

MIB = 1 << 20


@pytest.mark.parametrize(
    ("death", "reason", "sentence"),
    [
        (
            Death(42, -11, "executing batch 17", 212 * MIB, 4096 * MIB, is_oom_kill=False),
            Reason.INSTANCE_DIED,
            "(pid 42) was killed by signal 11 (SIGSEGV) while it was executing batch 17; its memory peaked at 212 MiB, "
            "the limit is 4096 MiB",
        ),
        (
            Death(42, -9, "idle", 4000 * MIB, 4096 * MIB, is_oom_kill=True),
            Reason.OUT_OF_MEMORY,
            "(pid 42) was killed by signal 9 (SIGKILL) by the kernel, which had run out of memory (OOM killer), while "
            "it was idle; its memory peaked at 4000 MiB, the limit is 4096 MiB",
        ),
        (
            Death(42, -11, "loading", 1, 4096 * MIB, is_oom_kill=True),
            Reason.INSTANCE_DIED,
            "(pid 42) was killed by signal 11 (SIGSEGV) while it was loading; its memory peaked at 0 MiB, the limit is "
            "4096 MiB",
        ),
        (
            Death(42, -6, "executing batch 3", MIB, MIB, is_oom_kill=False, limit_ms=1500),
            Reason.EXECUTION_LIMIT,
            "(pid 42) was killed by signal 6 (SIGABRT) because it was over the execution limit of 1500 ms while it was "
            "executing batch 3; its memory peaked at 1 MiB, the limit is 1 MiB",
        ),
        (
            Death(42, 0, "idle", MIB, MIB, is_oom_kill=False),
            Reason.INSTANCE_DIED,
            "(pid 42) exited with code 0 without being told to while it was idle; its memory peaked at 1 MiB, "
            "the limit is 1 MiB",
        ),
        (
            Death(42, 70, "executing batch 3", MIB, MIB, is_oom_kill=False, may_use_gpu=True),
            Reason.INSTANCE_DIED,
            "(pid 42) exited with code 70, since its GPU answered it no more, while it was executing batch 3; its "
            "memory peaked at 1 MiB, the limit is 1 MiB",
        ),
        (
            Death(42, 70, "idle", MIB, MIB, is_oom_kill=False),
            Reason.INSTANCE_DIED,
            "(pid 42) exited with code 70 while it was idle; its memory peaked at 1 MiB, the limit is 1 MiB",
        ),
    ],
    ids=["signal", "out of memory", "not the OOM killer's signal", "limit", "exit 0", "lost GPU", "no GPU"],
)
def test_each_end_has_its_sentence_and_its_reason(death: Death, reason: Reason, sentence: str) -> None:
    assert death.reason is reason
    assert death.describe() == sentence


@pytest.mark.parametrize(
    ("death", "figure"),
    [
        (Death(42, -11, "idle", 0, 0, is_oom_kill=False), 0xFFF5),
        (Death(42, 1, "idle", 0, 0, is_oom_kill=False), 1),
        (Death(42, -6, "idle", 0, 0, is_oom_kill=False, limit_ms=1500), 1500),
        (Death(42, -6, "idle", 0, 0, is_oom_kill=False, limit_ms=10**12), (1 << 26) - 1),
        (Death(42, -9, "idle", 100 * MIB, 511 * MIB, is_oom_kill=True), 100 << 17 | 511 << 4),
    ],
    ids=["signal", "code", "limit", "a long limit", "out of memory"],
)
def test_word_for_clients_says_which_instance_and_how_it_ended(death: Death, figure: int) -> None:
    placement = Placement("m_1_3", "m_1", "KIND_CPU", 0, (0,))
    assert DeathDetail.unpack(death.detail(["m_cpu", "m_1"], placement)) == (42, 1, 3, figure)


def test_a_group_beyond_those_that_the_word_can_name_has_no_name() -> None:
    groups = [f"m_{number}" for number in range(300)]
    death = Death(42, -11, "idle", 0, 0, is_oom_kill=False)
    for number, name in [(254, "m_254_3"), (255, "?_3"), (299, "?_3")]:
        placement = Placement(f"m_{number}_3", f"m_{number}", "KIND_CPU", 0, (0,))
        assert DeathDetail.unpack(death.detail(groups, placement)).instance_name(groups) == name


DUMP = 'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "m.py", line 1 in run'


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", ""),
        ("\n\n", ""),
        ("one\ntwo\n", "one\ntwo"),
        ("".join(f"line {each}\n" for each in range(20)), "\n".join(f"line {each}" for each in range(10, 20))),
        (f"before\nTraceback (most recent call last):\n  old\nValueError: x\n{DUMP}\n", DUMP),
        (
            "".join(f"line {each}\n" for each in range(20))
            + "Traceback (most recent call last):\n  new\nKeyError: 1\n",
            "Traceback (most recent call last):\n  new\nKeyError: 1",
        ),
    ],
)
def test_last_words_are_the_last_report_or_the_last_lines(written: str, words: str) -> None:
    assert last_words(written) == words
