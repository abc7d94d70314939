"""Every parser, over what was found before and a few damaged inputs: the same each time. The long form: parsers.py."""

import pytest

from tests.reliability.parsers import CORPUS, PARSERS, attack, fault_of

NUM_INPUTS = {"http2": 20, "ring": 4, "archive": 60}


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_raises_nothing_but_its_own_errors(name: str) -> None:
    kept = sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []
    assert [fault for path in kept if (fault := fault_of(PARSERS[name], path.read_bytes()))] == []
    assert attack(PARSERS[name], NUM_INPUTS.get(name, 200), seed=1) == []
