"""GET /v2/models/M/config of the sample models, to the letter: what is written, what is filled in, in which order."""

import json
import urllib.request
from pathlib import Path

import pytest

from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server

#: One file per sample model, checked by hand against Triton's rules.
EXPECTED = Path(__file__).parents[1] / "data" / "model_config"
MODELS = sorted(path.parent.name for path in SAMPLES.glob("*/config.pbtxt"))


def test_every_sample_model_has_its_expected_configuration() -> None:
    assert [path.stem for path in sorted(EXPECTED.iterdir())] == MODELS


@pytest.mark.parametrize("model", MODELS)
def test_the_configuration_is_printed_as_triton_prints_it(samples: Server, model: str) -> None:
    with urllib.request.urlopen(f"http://{samples.url}/v2/models/{model}/config", timeout=DEADLINE_S) as response:
        printed = response.read().decode()
    expected = json.loads((EXPECTED / f"{model}.json").read_text())
    assert printed == json.dumps(expected, separators=(",", ":"))
