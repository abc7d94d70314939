"""What a load has to do, version by version: compare what serves with what was found. Pure; runs in the supervisor.

Triton's rules, with one difference on purpose: it takes for modified what has become newer, we take what differs in its
modification time, so a roll-back to older files is noticed, too.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from shoal.model_config.messages import Config
from shoal.repository.found import FoundModel

#: What may change in the configuration of a version that goes on serving.
_IN_PLACE = ("instance_group", "version_policy")


class Source(NamedTuple):
    """What a version was loaded from."""

    place: str  # not that of a copy
    modified_ns: int
    others_ns: int
    config: Config  # as it was read, before anything was taken from the model file


class LoadPlan(NamedTuple):
    """What becomes of each version; one that is in none of the four is of no concern."""

    fresh: tuple[int, ...]  # to be loaded, beside the one that serves if there is one
    resized: tuple[int, ...]  # served on, with other instance groups
    kept: tuple[int, ...]  # served on as they are
    dropped: tuple[int, ...]  # no longer wanted


def plan(serving: Mapping[int, Source], found: FoundModel) -> LoadPlan:
    """How to get from the versions that serve to those that were found."""
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
    """What a version is loaded from if it is loaded now."""
    version = found.versions[number]
    return Source(found.origin or str(version.directory), version.modified_ns, found.others_ns, found.config)


def revision(name: str, number: int, source: Source, steps: Sequence[str] = ()) -> str:
    """What all servers call a version that was loaded from equal files, wherever they lie: by times, as above.

    `steps` are the revisions of the versions that an ensemble's requests go through.
    """
    facts = json.dumps((_fixed(source._replace(place="")), steps), sort_keys=True)
    return f"{name}:{number}:{blake2b(facts.encode(), digest_size=16).hexdigest()}"


def _fixed(source: Source) -> Source:
    config = {field: value for field, value in source.config.items() if field not in _IN_PLACE}
    return source._replace(config=config)
