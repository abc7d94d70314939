"""supervisor/questions/shadow.py: what is kept of shadows that have ended."""

from shoal.shadow import Pair
from shoal.supervisor.questions.shadow import MAX_ENDED, forgettable


def test_the_last_shadows_that_ended_are_kept_and_all_that_go_on() -> None:
    known = [Pair("m", number, number + 1) for number in range(1, MAX_ENDED + 11)]
    going_on = {known[0], known[5]}
    forgotten = forgettable(known, going_on)
    assert forgotten == [known[1], known[2], known[3], known[4], *known[6:10]]
    assert len(known) - len(forgotten) == MAX_ENDED + len(going_on)
    assert forgettable(known[:MAX_ENDED], ()) == []
