"""`shoal completion bash`: a real bash, sourced with what is printed, completes verbs, flags, values and models."""

import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.command_line import shoal_in
from tests.end_to_end.server import Server

ROOT = Path(__file__).parents[2]
#: Some of the verbs that print JSON: with a help of their own, with argparse's, and of those that ask a server.
JSON = ("init", "upgrade", "models")
#: Completes each of its arguments as Tab does, a line for each.
ASK = """
eval "$(shoal completion bash)"
for line in "$@"; do
    COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9
    COMPREPLY=()
    _python_argcomplete shoal
    echo "${COMPREPLY[@]}"
done
"""


@pytest.fixture
def environment(samples: Server, tmp_path: Path) -> dict[str, str]:
    """With the command `shoal` of this tree."""
    return {**shoal_in(tmp_path), "SHOAL_URL": samples.url}


def test_bash_completes_verbs_flags_values_and_models(environment: dict[str, str], tmp_path: Path) -> None:
    asked = ["shoal inf", "shoal bench --sample ", "shoal serve --http-po", "shoal top --int", "shoal infer simple_id"]
    asked += [f"shoal {verb} --js" for verb in JSON]
    verbs = ["top", "top --model", "rollout", "record", "shadow", "scale"]
    asked += [f"shoal {verb} simple_id" for verb in verbs]
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", *asked],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answers = [line.split() for line in done.stdout.splitlines()]
    words = [["infer"], ["zeros", "ones", "random"], ["--http-port"], ["--interval"], ["simple_identity"]]
    assert answers == words + [["--json"]] * len(JSON) + [["simple_identity"]] * len(verbs)


@pytest.mark.parametrize(("shell", "words"), [("zsh", "#compdef shoal"), ("fish", "complete --command shoal")])
def test_code_for_other_shells(environment: dict[str, str], shell: str, words: str) -> None:
    done = subprocess.run(
        ["shoal", "completion", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert words in done.stdout
