"""supervisor/questions/recording.py: recordings that clients begin; no process runs."""

import pwd

import pytest

from shoal.errors import UnavailableError
from shoal.supervisor.processes.outside_process import OutsideProcess
from shoal.supervisor.questions.recording import RecordingControl
from tests.supervisor.star_rig import OPTIONS, StarRig


def test_a_recording_for_which_there_is_no_directory_is_refused(rig: StarRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    for variable in ("HOME", "STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(OutsideProcess, "_start", lambda _process: None)
    control = RecordingControl(rig.loop, "@", {}, OPTIONS, rig.star)
    asked = rig.loop.begin(control.record({"model": "m", "sample": 1.0, "for_s": 60.0, "max_bytes": 0}))
    rig.clock.settle()
    with pytest.raises(UnavailableError, match=r"the server's user has no home directory; .*--record=FOLDER"):
        asked.result()
    assert not rig.batcher.heard()
    assert control._described()["recording"] == []
    rig.clock.run(control.recorder.close())
