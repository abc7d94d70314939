"""The table of flags is Triton's, whole, and agrees with ServerOptions."""

from dataclasses import fields

from scripts.flag_table import TRITON
from shoal.cli.environment import VARIABLES
from shoal.cli.flags import FLAGS, GROUPS
from shoal.options import ServerOptions


def test_every_flag_of_triton_is_there_and_none_is_there_twice() -> None:
    names = [flag.name for flag in FLAGS]
    assert len(names) == len(set(names))
    assert set(names) >= set(TRITON)


def test_an_honoured_flag_sets_a_field_and_every_field_has_a_flag_or_a_variable() -> None:
    honoured = {flag.option for flag in FLAGS if flag.is_honoured}
    of_store = {"model_store", "load_models"}  # which together are the option `store`
    assert of_store <= honoured
    of_command = {"store", "torchserve", "torchserve_https", "announcement"}  # set by the command `torchserve`
    assert {field.name for field in fields(ServerOptions)} == honoured - of_store | of_command | set(VARIABLES.values())
    assert honoured.isdisjoint(VARIABLES.values())


def test_every_flag_is_explained() -> None:
    assert all(flag.text for flag in FLAGS)
    assert "" not in GROUPS


def test_defaults_of_flags_are_values_of_their_kind() -> None:
    for flag in FLAGS:
        if flag.default not in (None, ""):
            assert flag.value.parse(str(flag.default)) == flag.default
