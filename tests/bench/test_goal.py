"""bench/goal.py: what is made of the slices."""

import random

from bench import goal


def test_settings_are_compared_round_by_round_so_that_the_machines_speed_does_not_matter() -> None:
    speeds = (1.0, 0.5, 0.9, 0.4, 0.7)
    rows = [{"unbatched": 10 * speed, "goal": 9 * speed} for speed in speeds]
    for row in rows:
        row.update(dict.fromkeys(goal.SETTINGS.keys() - row.keys(), 1.0))
    assert goal.ratios(rows, ["unbatched"]) == {"unbatched": 0.9}
    assert goal.line("a", rows, ".1f") == "| a | 7.0 | 1.0 | 1.0 | 1.0 | 6.3 | 0.90 (unbatched) |"


def test_a_machine_on_which_nobody_is_in_time_tells_nothing() -> None:
    rows = [dict.fromkeys(goal.SETTINGS, 0.3)]
    assert goal.line("a", rows, ".0%").endswith("| the machine is too slow |")


def test_every_setting_has_its_turn_and_the_first_round_does_not_count() -> None:
    asked: list[tuple[str, int]] = []

    def ask(setting: str, number: int) -> float:
        asked.append((setting, number))
        return number

    rows = goal.rounds(ask, 4)
    assert rows == [dict.fromkeys(goal.SETTINGS, number) for number in (1, 2, 3)]
    assert sorted(asked) == sorted((setting, number) for setting in goal.SETTINGS for number in range(4))
    assert len({tuple(setting for setting, each in asked if each == number) for number in range(4)}) > 1


def test_all_settings_get_the_same_load_and_as_much_as_they_should() -> None:
    for shape in goal.SHAPES:
        due = [list(goal.arrivals(shape, 320, random.Random(3))) for _ in range(2)]
        assert due[0] == due[1] == sorted(due[0])
        assert 150 < len(due[0]) < 500
