"""What other programs take of a machine while a search measures."""

from shoal.cli.tune.other_programs import Reading, as_text, read, share


def test_the_time_of_a_search_and_its_server_is_not_of_others() -> None:
    before = Reading(at_s=100.0, machine_s=5000.0, own_s=7.0)
    assert share(before, Reading(110.0, 5012.0, 19.0), 2) == 0
    assert share(before, Reading(110.0, 5012.0, 13.0), 2) == 0.3
    assert share(before, Reading(110.0, 5012.0, 19.5), 2) == 0, "the two are counted in ticks of different lengths"


def test_readings_grow() -> None:
    first, second = read(), read()
    assert first.at_s < second.at_s
    assert first.machine_s <= second.machine_s
    assert first.own_s <= second.own_s


def test_a_sentence_only_where_they_disturb() -> None:
    assert as_text(0.05) == ""
    assert as_text(0.3).startswith("Other programs took 30% of this machine meanwhile")
