"""Mode poll: what is tried again, and what the log says of it."""

import shutil
from pathlib import Path

import tritonclient.http as triton

from tests.end_to_end.lifecycle import ENSEMBLE, index_once, infer, ready, unloaded, write_model
from tests.end_to_end.server import serving_to_the_end
from tests.end_to_end.traffic import MODEL


def test_what_is_broken_is_tried_and_told_once_for_each_change(tmp_path: Path) -> None:
    """A model that comes and goes shows that the repository has been polled, at least twice."""
    repository = tmp_path
    write_model(repository, "unread", 1, config="no configuration")
    write_model(repository, "unloadable", 1, config=MODEL + 'output { name: "C" data_type: TYPE_INT32 dims: [ 4 ] }')
    write_model(repository, "made", 1, config=ENSEMBLE.replace("STEP", "late"))
    for name in ("line\nfeed", "caf\udce9"):  # the second is no UTF-8
        (repository / name).mkdir()
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with serving_to_the_end(repository, *flags) as server, triton.InferenceServerClient(server.url) as client:

        def poll() -> None:
            write_model(repository, "counter", 1)
            index_once(client, [ready("counter")])
            shutil.rmtree(repository / "counter")
            index_once(client, [unloaded("counter")])

        def num_said(model: str) -> int:
            server.read_on()
            return server.log.count(f"failed to load '{model}'".encode())

        poll()
        broken = "unread", "unloadable", "made", "line\\nfeed", "caf\\\\udce9"  # as the log escapes them
        assert {name: num_said(name) for name in broken} == dict.fromkeys(broken, 1)
        assert server.log.count(b"loading: unloadable:1") == 1
        # Each change is tried: another mistake, another right of a file, a model that an ensemble needs. A poll that
        # comes in the midst of a change may see two.
        write_model(repository, "unread", 1, config="still no configuration")
        (repository / "unloadable" / "config.pbtxt").chmod(0o600)
        assert server.read_log(b"failed to load 'unloadable'", start=len(server.log))
        poll()
        told = num_said("unread"), num_said("unloadable"), num_said("made")
        assert (told[0] > 1, told[1] > 1, told[2]) == (True, True, 1)
        poll()
        assert (num_said("unread"), num_said("unloadable"), num_said("made")) == told
        write_model(repository, "unread", 1)
        write_model(repository, "unloadable", 1)
        write_model(repository, "late", 1)
        index_once(client, [ready(name) for name in ("late", "made", "unloadable", "unread")])
        # What serves is as patient with what would replace it.
        before = num_said("unread")
        write_model(repository, "unread", 1, config="no configuration")
        poll()
        after = num_said("unread")
        assert after > before
        poll()
        assert num_said("unread") == after
        assert infer(client, "unread") == "1"
