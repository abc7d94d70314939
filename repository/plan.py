"""The plan of a load: what it does with each version that serves or was found. Pure; in the supervisor.

The rules are Triton's, with one difference on purpose: Triton reloads a version whose files have become newer, Shoal
one whose modification times differ, so that a roll-back to older files is noticed, too.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from shoal.model_config.messages import Config
from shoal.repository.found import FoundModel

#: Fields of the configuration that may change while a version goes on serving.
_IN_PLACE = ("instance_group", "version_policy")


class Source(NamedTuple):
    """The files and configuration from which a version was loaded."""

    place: str  # the version's directory or cloud address in its repository, not that of a copy here
    modified_ns: int
    others_ns: int
    config: Config  # as it was read, before tensors were taken from the model file


class LoadPlan(NamedTuple):
    """The versions by what a load does with them; versions in none of the four are left alone."""

    fresh: tuple[int, ...]  # to be loaded, beside a version that serves if there is one
    resized: tuple[int, ...]  # goes on serving, with other instance groups
    kept: tuple[int, ...]  # goes on serving unchanged
    dropped: tuple[int, ...]  # no longer wanted: to be retired


def plan(serving: Mapping[int, Source], found: FoundModel) -> LoadPlan:
    """What a load does with the versions that serve and those that were found on disk."""
    fresh, resized, kept = [], [], []
    for number in sorted(found.versions):
        source, wanted = serving.get(number), source_of(found, number)
        if source is None or _fixed(source) != _fixed(wanted):
            fresh.append(number)
        elif source.config["instance_group"] != wanted.config["instance_group"]:
            resized.append(number)
        else:
            kept.append(number)
    dropped = [number for number in sorted(serving) if number not in found.versions]
    return LoadPlan(tuple(fresh), tuple(resized), tuple(kept), tuple(dropped))


def source_of(found: FoundModel, number: int) -> Source:
    """The source of a version that would be loaded now."""
    version = found.versions[number]
    return Source(found.origin or str(version.directory), version.modified_ns, found.others_ns, found.config_of(number))


def revision(name: str, number: int, source: Source, steps: Sequence[str] = ()) -> str:
    """An identifier of a version, equal on all servers for files of equal modification times, wherever they lie.

    `steps` are the revisions of the versions that an ensemble's requests go through.
    """
    facts = json.dumps((_fixed(source._replace(place="")), steps), sort_keys=True)
    return f"{name}:{number}:{blake2b(facts.encode(), digest_size=16).hexdigest()}"


def _fixed(source: Source) -> Source:
    config = {field: value for field, value in source.config.items() if field not in _IN_PLACE}
    return source._replace(config=config)
