"""shoal/memo.py: what is kept and found, what is dropped when there is too much of it, and what is counted."""

import pytest

from shoal import interpreter, memo
from shoal.memo import Memo, figures, memoized


@pytest.fixture(autouse=True)
def _own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "_figures", {})
    monkeypatch.setattr(memo, "_functions", {})


def test_a_full_memo_begins_anew() -> None:
    squares = Memo[int, int]("square", 3)
    for number in range(3):
        squares.keep(number, number**2)
    assert (squares.entries.get(0), squares.entries.get(2), squares.entries.get(3)) == (0, 4, None)
    squares.keep(3, 9)
    assert squares.entries == {3: 9}
    assert figures() == {"memo_square_kept": 4, "memo_square_dropped": 1}


def test_memos_of_one_kind_are_counted_together_and_looking_up_is_not() -> None:
    first, second = (Memo[str, str]("head", 8) for _ in range(2))
    first.keep("a", "b")
    second.keep("a", "c")
    assert (first.entries.get("a"), second.entries.get("a"), second.entries.get("x")) == ("b", "c", None)
    assert figures() == {"memo_head_kept": 2, "memo_head_dropped": 0}


def test_a_memoized_function_drops_what_was_not_asked_for_longest() -> None:
    asked = []

    @memoized("double", 2)
    def double(number: int) -> int:
        asked.append(number)
        return 2 * number

    assert [double(number) for number in (1, 2, 1, 3, 1, 2)] == [2, 4, 2, 6, 2, 4]
    assert asked == [1, 2, 3, 2]
    assert figures() == {"memo_double_kept": 4, "memo_double_dropped": 2, "memo_double_found": 2}


def test_what_was_never_used_is_not_told() -> None:
    memoized("unused", 2)(len)
    Memo[int, int]("empty", 2)
    assert figures() == {}


@pytest.mark.skipif(interpreter.is_compiled(), reason="compiled, an object of a generic class has a dictionary")
def test_a_memo_has_no_room_for_more_than_its_entries() -> None:
    with pytest.raises(AttributeError):
        Memo[int, int]("square", 3).hits = 0  # type: ignore[attr-defined]
