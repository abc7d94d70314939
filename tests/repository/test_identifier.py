"""repository/identifier.py: what a name means."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.repository.identifier import ModelIdentifier, only_model


def test_identifiers_are_sorted_by_name_and_printed_with_their_namespace() -> None:
    there, here, other = ModelIdentifier("m", "/b"), ModelIdentifier("m", "/a"), ModelIdentifier("k", "/b")
    assert sorted([there, here, other]) == [other, here, there]
    assert (str(here), str(ModelIdentifier("m"))) == ("/a::m", "m")


def test_a_name_means_one_model_or_none() -> None:
    here = ModelIdentifier("m", "/a")
    assert only_model("m", [here]) is here
    assert only_model("m", ()) is None


def test_a_name_of_several_models_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        only_model("m", [ModelIdentifier("m", repository) for repository in ("/a", "/b", "/c")])
    assert str(refusal.value) == (
        "There are 3 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
    )
