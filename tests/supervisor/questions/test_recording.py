"""supervisor/questions/recording.py: recordings that clients begin; no process runs."""

import os
import pwd
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import UnavailableError
from shoal.shm.segment import OutOfSharedMemoryError
from shoal.supervisor.processes import ring_readers
from shoal.supervisor.processes.outside_process import OutsideProcess
from shoal.supervisor.questions import recording
from shoal.supervisor.questions.recording import CHECK_S, RecordingControl
from tests.end_to_end.command_line import SHOAL
from tests.end_to_end.server import SAMPLES
from tests.supervisor.star_rig import OPTIONS, StarRig


def test_a_recording_for_which_there_is_no_directory_is_refused(rig: StarRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    for variable in ("HOME", "STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(OutsideProcess, "_start", lambda _process: None)
    control = RecordingControl(rig.star, "@", OPTIONS)
    asked = rig.loop.begin(control.record({"model": "m", "sample": 1.0, "for_s": 60.0, "max_bytes": 0}))
    rig.clock.settle()
    with pytest.raises(UnavailableError, match=r"the server's user has no home directory; .*--record=FOLDER"):
        asked.result()
    assert not rig.batcher.heard()
    assert control._described()["recording"] == []
    rig.clock.run(control.recorder.close())


def test_a_recording_for_which_there_is_no_memory_leaves_large_results_as_they_were(
    rig: StarRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each was announced to the batcher from then on, which recorded none."""

    def refuses(*_args: object, **_named: object) -> int:
        raise OutOfSharedMemoryError("no shared memory")

    monkeypatch.setattr(OutsideProcess, "_start", lambda _process: None)
    control = RecordingControl(rig.star, "@", replace(OPTIONS, record=str(tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(ring_readers, "create_segment", refuses)
        with pytest.raises(OutOfSharedMemoryError):
            control.start()
    assert not rig.star.payloads.are_recorded
    control.start()
    assert rig.star.payloads.are_recorded
    rig.clock.run(control.recorder.close())


def test_a_recording_whose_folder_takes_no_file_is_refused_when_it_is_asked_for(rig: StarRig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    control = RecordingControl(rig.star, "@", replace(OPTIONS, record=str(tmp_path / "file" / "x")))
    asked = rig.loop.begin(control.record({"model": "m", "sample": 1.0, "for_s": 60.0, "max_bytes": 0}))
    rig.clock.until(asked.done)
    sentence = f"cannot write into '{tmp_path}/file/x': Not a directory. Have it written to, or start the server with"
    with pytest.raises(UnavailableError, match=sentence):
        asked.result()
    assert not rig.batcher.heard()
    rig.clock.run(control.recorder.close())


def test_a_disk_that_hangs_is_asked_once_and_no_recording_begins_when_it_goes_on(
    rig: StarRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waited for as long as the disk, kept a descriptor, and began to record long after its client had
    left. The disk is simulated by a pipe that no writer has opened yet."""
    pipe, num_checks = tmp_path / "pipe", 0
    os.mkfifo(pipe)

    def why_unwritable(_folder: Path) -> str:
        nonlocal num_checks
        num_checks += 1
        return pipe.read_text()

    monkeypatch.setattr(recording, "why_unwritable", why_unwritable)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    control = RecordingControl(rig.star, "@", OPTIONS)
    arguments = {"model": "m", "sample": 1.0, "for_s": 60.0, "max_bytes": 0}
    asked = [rig.loop.begin(control.record(arguments)) for _ in range(3)]
    rig.clock.pass_time(CHECK_S + 0.1)
    for each in asked:
        with pytest.raises(UnavailableError, match=r"has taken no file within 5 s, its disk is slow or hangs"):
            each.result()
    later = rig.loop.begin(control.record(arguments))
    rig.clock.settle()
    pipe.write_text("No space left on device")
    rig.clock.until(later.done)
    with pytest.raises(UnavailableError, match="No space left on device"):
        later.result()
    assert num_checks == 1
    assert control._described()["recording"] == []
    rig.clock.run(control.recorder.close())


def test_a_disk_that_hangs_delays_the_start_for_seconds(
    rig: StarRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start waited for as long as the disk, which is played by a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(recording, "why_unwritable", lambda _folder: pipe.read_text())
    control = RecordingControl(rig.star, "@", replace(OPTIONS, record=str(tmp_path)))
    rig.clock.run(control.check())
    pipe.write_text("")
    assert control._checked is not None
    rig.clock.until(control._checked.done)
    rig.clock.run(control.recorder.close())


def test_a_server_with_a_folder_that_takes_no_file_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    flags = ["--http-port=0", "--grpc-port=0", "--allow-metrics=false", f"--record={tmp_path}/file"]
    done = subprocess.run(
        [*SHOAL, "serve", str(SAMPLES), *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    said = f"cannot write recordings into '{tmp_path}/file': it is no folder. Give another --record"
    assert said in done.stderr + done.stdout
