"""The version for a request that names none while such requests are split, and what messages change in an entry."""

from shoal.star.models import ModelTable
from tests.messages import model_message

CONFIG = {"name": "m", "max_batch_size": 0, "input": [], "output": []}


def test_requests_without_a_version_have_the_id_of_the_split_and_others_that_of_their_version() -> None:
    table = ModelTable()
    table.apply(model_message("m", 1, 11, CONFIG, is_default=True, split_id=50, sticky_header="x-user"))
    table.apply(model_message("m", 3, 13, CONFIG))
    entry = table.lookup("m", None)
    assert (entry.version, entry.model_id, entry.sticky_header) == (1, 50, "x-user")
    assert table.lookup("m", "1").model_id == 11
    assert table.lookup("m", "3").model_id == 13
    assert table.names[50] == "m"
    before = table.num_changes
    table.apply(model_message("m", 1, 11, None, is_default=True))
    assert table.num_changes > before, "what is kept of requests is looked up again"
    assert table.lookup("m", None).model_id == 11


def test_without_its_stable_version_requests_mean_the_highest_as_ever() -> None:
    table = ModelTable()
    table.apply(model_message("m", 1, 11, CONFIG, is_default=True, split_id=50, state="UNLOADING"))
    table.apply(model_message("m", 3, 13, CONFIG))
    assert table.lookup("m", None).model_id == 13


def test_a_signature_is_made_again_only_where_the_configuration_has_changed() -> None:
    """Most messages, about deaths and states, come with the same configuration."""
    table = ModelTable()
    table.apply(model_message("m", 1, 11, CONFIG))
    before = table.lookup("m", None)
    table.apply(model_message("m", 1, 11, dict(CONFIG), num_instances_up=1))
    after = table.lookup("m", None)
    assert (after.num_instances_up, after.signature is before.signature) == (1, True)
    table.apply(model_message("m", 1, 11, {**CONFIG, "max_batch_size": 8}))
    assert table.lookup("m", None).signature.max_batch_size == 8
