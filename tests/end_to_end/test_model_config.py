"""GET /v2/models/M/config of the sample models, to the letter: what is written, what is filled in, in which order."""

import json
import urllib.request

import pytest

from tests.end_to_end.sample_configurations import CONFIGURATIONS, Fields
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server

MODELS = sorted(path.parent.name for path in SAMPLES.glob("*/config.pbtxt"))


def test_every_sample_model_has_its_expected_configuration() -> None:
    assert [expected["name"] for expected in CONFIGURATIONS] == MODELS


@pytest.mark.parametrize("expected", CONFIGURATIONS, ids=lambda expected: expected["name"])
def test_the_configuration_is_printed_as_triton_prints_it(samples: Server, expected: Fields) -> None:
    url = f"http://{samples.url}/v2/models/{expected['name']}/config"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
        printed = response.read().decode()
    assert printed == json.dumps(expected, separators=(",", ":"))
