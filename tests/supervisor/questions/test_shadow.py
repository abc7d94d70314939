"""supervisor/questions/shadow.py: what is mirrored, and what is kept of shadows that have ended; no process runs."""

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError, NotFoundError, UnavailableError
from shoal.messages.message import Message
from shoal.messages.to_batcher import ComparisonRingMade, ShadowsChanged
from shoal.messages.to_comparator import AnswersCompared, ComparisonsChanged
from shoal.messages.to_recorder import RingAdded
from shoal.shadow import Pair, ShadowRule
from shoal.shm import segment
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.processes import outside_process, ring_readers
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.outside_process import OutsideProcess
from shoal.supervisor.questions import shadow
from shoal.supervisor.questions.shadow import MAX_ENDED, ShadowControl, forgettable, shadow_file
from tests.supervisor.star_rig import OPTIONS, StarRig

RULE = ShadowRule("m", 1, 2)


@pytest.fixture
def control(rig: StarRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShadowControl]:
    """The shadows of a server with versions 1 and 2 of a model, whose comparator never comes up."""
    monkeypatch.setattr(OutsideProcess, "_start", lambda _process: None)
    served = SimpleNamespace(version=SimpleNamespace(config={}, version_dir=tmp_path / "1"))
    model = SimpleNamespace(serving={1: served, 2: served})
    models: Any = SimpleNamespace(models={}, get=lambda _name: model)
    options = replace(OPTIONS, shadow_file=str(tmp_path / "shadows.json"))
    made = ShadowControl(rig.star, "@", models, shadow_file(options))
    yield made
    rig.clock.run(made.comparator.close())


def kept(control: ShadowControl) -> list[Any]:
    clock: Any = control.writer._loop._loop
    clock.until(control.writer._written.done)
    return control._file.read()


def test_a_shadow_for_which_there_is_no_memory_is_not_on(
    control: ShadowControl, rig: StarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_args: object, **_named: object) -> int:
        raise OutOfSharedMemoryError("no shared memory")

    with monkeypatch.context() as patch:
        patch.setattr(ring_readers, "create_segment", refuses)
        with pytest.raises(UnavailableError, match="the shadows stay as they are: no shared memory"):
            control.begin(RULE)
    with pytest.raises(InvalidArgumentError, match="has no shadow"):
        control.end("m", 1)
    assert kept(control) == []
    control.on_models_changed()
    control.comparator.join_batcher(rig.batcher.member)  # as a successor
    assert not rig.batcher.heard()
    control.begin(RULE)
    assert [type(each) for each in rig.batcher.heard()] == [ComparisonRingMade, ShadowsChanged]
    assert len(kept(control)) == 1


def test_a_shadow_for_whose_ring_descriptors_run_out_on_the_way_changes_nothing(
    control: ShadowControl, rig: StarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batcher mirrored by a rule that was refused, into a ring that the comparator was never sent."""
    comparator = rig.start()
    control.comparator._member = comparator.member
    opened, read_only = list[int](), segment.read_only

    def refuses_the_second(fd: int) -> int:
        if opened:
            raise OSError(errno.EMFILE, "too many open files")
        opened.append(read_only(fd))
        return opened[0]

    with monkeypatch.context() as patch:
        patch.setattr(segment, "read_only", refuses_the_second)
        with pytest.raises(UnavailableError, match="the shadows stay as they are"):
            control.begin(RULE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    assert not rig.batcher.heard()
    control.begin(RULE)
    assert [type(each) for each in rig.batcher.heard()] == [ComparisonRingMade, ShadowsChanged]
    assert [type(each) for each in comparator.heard()] == [ComparisonsChanged, RingAdded]


def test_a_successor_that_came_while_nothing_was_mirrored_has_a_ring_with_the_next_shadow(
    control: ShadowControl, rig: StarRig
) -> None:
    """The comparator has not drained the ring of the dead batcher yet."""
    control.begin(RULE)
    control.end("m", 1)
    successor = rig.replace_batcher()
    control.comparator.join_batcher(successor.member)
    rig.settle()
    control.begin(RULE)
    assert [type(each) for each in successor.heard()] == [ComparisonRingMade, ShadowsChanged]
    control.end("m", 1)
    assert [type(each) for each in successor.heard()] == [ShadowsChanged]


def test_a_comparator_that_cannot_be_started_is_tried_again_after_its_pause_and_not_before(
    control: ShadowControl, rig: StarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further rules do not start it meanwhile, nor a batcher's successor; and it is not started once it has ended."""
    monkeypatch.undo()
    attempts = list[float]()

    def refuses(*_arguments: object, **_named: object) -> None:
        attempts.append(round(rig.loop.now_s(), 3))
        raise OSError("no more processes")

    monkeypatch.setattr(outside_process, "spawn", refuses)
    began_s = round(rig.loop.now_s(), 3)
    control.begin(RULE)
    rig.clock.settle()
    control.begin(RULE._replace(share=0.5))
    control.comparator.join_batcher(rig.replace_batcher().member)
    assert attempts == [began_s, began_s]  # the first pause is none
    rig.clock.pass_time(0.6)
    assert attempts == [began_s, began_s, began_s + 0.5]
    rig.clock.run(control.comparator.close())
    rig.clock.pass_time(60.0)
    assert len(attempts) == 3


def test_the_comparator_has_a_rule_before_the_batcher_mirrors_by_it(
    control: ShadowControl, rig: StarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares answers of a pair without a rule exactly, and a rollout may end for their differences."""
    control.comparator._member = rig.start().member
    sent, send = list[type[Message]](), Member.send

    def noted(member: Member, message: Message, seq: int = 0) -> None:
        sent.append(type(message))
        send(member, message, seq)

    monkeypatch.setattr(Member, "send", noted)
    control.begin(RULE)
    assert sent == [ComparisonRingMade, ComparisonsChanged, ShadowsChanged, RingAdded]
    sent.clear()
    control.begin(RULE._replace(compare="rtol=1e-3"))
    assert sent == [ComparisonsChanged, ShadowsChanged]


def test_a_shadow_that_waits_for_its_version_can_be_ended(control: ShadowControl) -> None:
    """It began again with the version, though its client had been told that there is none."""
    control.begin(RULE)
    serving = control._models.get("m").serving
    served = serving.pop(1)
    control.on_models_changed()
    control.end("m", 1)
    assert kept(control) == []
    serving[1] = served
    control.on_models_changed()
    assert control._rules == []
    with pytest.raises(InvalidArgumentError, match="version 1 of model 'm' has no shadow"):
        control.end("m", 1)


def test_rules_for_versions_that_are_gone_are_bounded_and_the_last_ones_are_kept(control: ShadowControl) -> None:
    """A server gets a version every day, each of which shadows the one before."""
    serving = control._models.get("m").serving
    (served, _) = serving.values()
    newest = 3 * MAX_ENDED
    for number in range(2, newest + 1):
        serving.clear()
        serving.update({number - 1: served, number: served})
        control.begin(ShadowRule("m", number - 1, number))
    waiting = [("m", number) for number in range(newest - 1 - MAX_ENDED, newest - 1)]
    assert [name for name, _ in kept(control)] == [*waiting, ("m", newest - 1)]
    serving.clear()
    serving.update({1: served, 2: served, waiting[0][1]: served})
    control.begin(ShadowRule("m", 1, 2))
    assert waiting[0] in control._asked  # served again: it does not wait any more


def test_rules_for_models_that_are_not_loaded_wait_for_them(
    control: ShadowControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's models are loaded one at a time, each of which has a shadow."""
    model, loaded = control._models.get("m"), list[str]()

    def get(name: str) -> Any:
        if name not in loaded:
            raise NotFoundError(f"model '{name}' is not loaded")
        return model

    monkeypatch.setattr(control._models, "get", get)
    names = [f"m{number}" for number in range(MAX_ENDED + 10)]
    for name in names:
        loaded[:] = [name]
        control.begin(ShadowRule(name, 1, 2))
    assert [name for (name, _), _ in kept(control)] == names
    loaded[:] = names[:1]
    control.on_models_changed()
    assert [each.model for each in control._rules] == names[:1]
    monkeypatch.setattr(shadow, "MAX_WAITING", MAX_ENDED)
    control.begin(ShadowRule("m0", 1, 2, 0.5))
    assert [name for (name, _), _ in kept(control)] == [*names[-MAX_ENDED:], "m0"]


def test_a_version_in_the_file_that_no_message_can_carry_costs_its_row(
    control: ShadowControl, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every load of the model failed, as the rule could not be sent to the batcher."""
    row = {"model": "m", "of": 1, "version": 2, "share": 1.0, "compare": ""}
    rows = [row, {**row, "of": 2, "version": 1 << 64}, {**row, "of": 0}, {**row, "of": -1, "stop": True}]
    said = {"version": 1, "repositories": control._file._repositories, "shadows": rows}
    (tmp_path / "shadows.json").write_text(json.dumps(said))
    control.restore()
    control.on_models_changed()
    assert control._rules == [RULE]
    assert caplog.text.count("shadows of before cannot be read") == 3


def test_the_last_shadows_that_ended_are_kept_and_all_that_go_on() -> None:
    known = [Pair("m", number, number + 1) for number in range(1, MAX_ENDED + 11)]
    going_on = {known[0], known[5]}
    forgotten = forgettable(known, going_on)
    assert forgotten == [known[1], known[2], known[3], known[4], *known[6:10]]
    assert len(known) - len(forgotten) == MAX_ENDED + len(going_on)
    assert forgettable(known[:MAX_ENDED], ()) == []


@pytest.mark.parametrize(("dropped", "drops"), [(1, {"comparator": 1}), (0, {})])
def test_a_pair_during_whose_comparison_the_comparator_ended_is_dropped(
    control: ShadowControl, dropped: int, drops: dict[str, int]
) -> None:
    on_compared = control.comparator._handlers()[AnswersCompared]
    on_compared(AnswersCompared("m", 1, 2, 3, 0, 0, 10, 20, [], dropped))
    (figures,) = control.figures()
    assert (figures["agreed"], figures["dropped"], figures["drops"]) == (3, dropped, drops)
