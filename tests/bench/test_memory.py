"""bench/memory.py: what the kernel says of a process, and the table of all."""

import mmap
import os
from pathlib import Path

from bench.memory import Memory, file_pages, files_alone, memory_by_process, parse_rollup, table

ROLLUP = """\
5581d8a5c000-7ffc8b1fe000 ---p 00000000 00:00 0                          [rollup]
Rss:               30000 kB
Pss:               13000 kB
Pss_Dirty:         12000 kB
Pss_Anon:          10240 kB
Pss_File:           1024 kB
Pss_Shmem:          2048 kB
Private_Clean:       512 kB
Private_Dirty:      4608 kB
"""


def test_the_parts_of_a_process_s_memory() -> None:
    found = parse_rollup("shoal http", ROLLUP)
    assert found == Memory("shoal http", 10 << 20, 2 << 20, 1 << 20, 5 << 20)
    assert found.total == 13 << 20


def test_the_last_line_is_the_sum() -> None:
    rows = [Memory("a", 1 << 20, 2 << 20, 3 << 20, 1 << 20), Memory("b", 1 << 19, 0, 0, 0)]
    *_, one, other, total, alone = table(rows, 5 << 20).splitlines()
    assert one == "| a | 6.0 | 1.0 | 2.0 | 3.0 | 1.0 |"
    assert other == "| b | 0.5 | 0.5 | 0.0 | 0.0 | 0.0 |"
    assert total == "| all | 6.5 | 1.5 | 2.0 | 3.0 | 1.0 |"
    assert alone == "| all, were the server alone | 8.5 | 1.5 | 2.0 | 5.0 | 1.0 |"


def test_this_process_has_some() -> None:
    found = memory_by_process(os.getpid())
    assert found[0].title  # under xdist it names the test
    assert found[0].anonymous > 1 << 20


def test_a_file_s_page_counts_once_when_it_is_present_and_no_more_when_it_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(bytes(3 * 4096))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as it:
        it.madvise(mmap.MADV_RANDOM)  # brings no neighbours in

        def numbers() -> list[int]:
            inode = f" {path.stat().st_ino}"
            return sorted(number for name, number in file_pages(os.getpid()) if name.endswith(inode))

        assert it[2 * 4096] == 0
        assert 2 in numbers()
        it[2 * 4096] = 1
        assert 2 not in numbers()
    assert 1 << 20 < files_alone(os.getpid()) < 1 << 30
