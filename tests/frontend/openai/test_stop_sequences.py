"""frontend/openai/completion.py: a text ends where it would if it had come in one piece."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.openai.completion import StopSequences

LETTERS = st.text("ab", max_size=12)


@given(st.lists(LETTERS, max_size=6), st.lists(LETTERS.filter(bool), max_size=3))
def test_pieces_make_no_difference(pieces: list[str], stops: list[str]) -> None:
    search = StopSequences(stops)
    said = [search.feed(piece) for piece in pieces]
    was_found = search.is_found
    said.append(search.rest())
    text = "".join(pieces)
    ends = [text.find(stop) for stop in stops if stop in text]
    assert was_found == bool(ends)
    if not ends:
        assert "".join(said) == text
        return
    # The first piece that completes a stop sequence decides, and then the first of those that it completes.
    num = next(count for count in range(len(pieces) + 1) if any(stop in "".join(pieces[:count]) for stop in stops))
    begun = "".join(pieces[:num])
    assert "".join(said) == begun[: min(begun.find(stop) for stop in stops if stop in begun)]


def test_what_may_begin_a_stop_sequence_is_kept_back() -> None:
    search = StopSequences(["END"])
    assert [search.feed(piece) for piece in ("the E", "N", "E", "ND of it", "more")] == ["the ", "", "EN", "", ""]
    assert (search.is_found, search.rest()) == (True, "")
    search = StopSequences(["END"])
    assert (search.feed("the EN"), search.rest(), search.is_found) == ("the ", "EN", False)
