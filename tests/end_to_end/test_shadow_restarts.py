"""Shadows on a real server that a restart must not lose, and a model's own comparison of answers."""

import json
import re
from pathlib import Path
from typing import Any

from tests.end_to_end.asking import fetch
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import Server, only, serving_to_the_end, wait_until
from tests.end_to_end.test_shadow import CONFIG, DIFFERENT, MODEL, PAGE, Shadowed

(COMPARE,) = re.findall(r"```python\n(def compare.*?)```", PAGE, re.DOTALL)


def begin(server: Server, **said: object) -> Any:
    answer = fetch(server.http_port, "/v2/shadow", {"model": "digits", **said})
    return answer.json | {"status": answer.status}


def add_digits(repository: Path, more: str = "") -> Path:
    first = add_model(repository, "digits", CONFIG + more, MODEL)
    (first.parent / "2").mkdir()
    (first.parent / "2" / "model.py").write_text(MODEL)
    return first.parent


def test_a_shadow_begun_by_request_goes_on_after_a_restart_with_the_models_own_comparison(tmp_path: Path) -> None:
    repository, state = tmp_path / "models", tmp_path / "shadows.json"
    model, flags = add_digits(repository), (*only("digits"), f"--shadow-file={state}")
    with serving_to_the_end(repository, *flags) as server:
        refused = begin(server, version=2, of=1, compare="python")
        assert (refused["status"], state.exists()) == (400, False)
        assert "needs a file compare.py with a function compare(primary, shadow, inputs)" in refused["error"]
        (model / "compare.py").write_text(COMPARE)
        assert begin(server, version=2, of=1, compare="python")["status"] == 200
        shadowed = Shadowed(server, model / "gate")
        shadowed.ask_until(1, "agreed")
        found = shadowed.ask_until(DIFFERENT, "disagreed")
        assert found["examples"][0]["what"] == ["compare.py: Y is 0.5 away where X is 13"]
    (kept,) = json.loads(state.read_text())["shadows"]
    assert kept == {"model": "digits", "of": 1, "version": 2, "share": 1.0, "compare": "python"}
    with serving_to_the_end(repository, *flags) as server:
        shadowed = Shadowed(server, model / "gate")
        found = shadowed.ask_until(DIFFERENT, "disagreed")
        assert (found["is_on"], found["compare"]) == (True, "python")
        assert found["examples"][0]["what"] == ["compare.py: Y is 0.5 away where X is 13"]
        assert begin(server, of=1, stop=True)["status"] == 200
    assert json.loads(state.read_text())["shadows"] == []


def test_a_configured_shadow_that_was_ended_stays_so_and_a_damaged_file_costs_itself(tmp_path: Path) -> None:
    repository, state = tmp_path / "models", tmp_path / "shadows.json"
    parameters = "".join(re.findall(r"parameters \{ key: .*\n", PAGE))
    add_digits(repository, parameters)
    flags = (*only("digits"), f"--shadow-file={state}")
    with serving_to_the_end(repository, *flags) as server:
        assert begin(server, of=1, stop=True)["status"] == 200
    with serving_to_the_end(repository, *flags) as server:
        assert fetch(server.http_port, "/v2/shadow").json["shadows"] == []
    kept = json.loads(state.read_text())
    rows = [*kept["shadows"], {"model": 3}, {"model": "digits", "of": 2, "version": 2, "share": 1, "compare": ""}]
    rows += [{"model": "digits", "of": 9, "version": 2, "share": 1, "compare": "near"}, []]
    state.write_text(json.dumps({**kept, "shadows": rows}))
    with serving_to_the_end(repository, *flags) as server:
        assert fetch(server.http_port, "/v2/shadow").json["shadows"] == []
        wait_until(lambda: server.log.count(b"shadows of before cannot be read") == 4)
        state.write_text("[" * 100_000)
    with serving_to_the_end(repository, *flags) as server:
        assert fetch(server.http_port, "/v2/shadow").json["shadows"][0]["is_on"]
        assert server.read_log(b"shadows.json is now")
