"""Optimization profiles: the shapes that an engine was built for, and the choice of the profile that a batch is run
with.

Pure: does not import TensorRT. The distance that decides the choice, and the texts of errors, are Triton's. Runs in a
worker.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from shoal.errors import InvalidArgumentError
from shoal.model_config.messages import Config

Shape: TypeAlias = tuple[int, ...]


class Bounds(NamedTuple):
    """The bounds that a profile sets for one input: for the input's shape, or for the values of an input that is a
    shape."""

    least: Shape
    best: Shape
    most: Shape

    def allow(self, shape: Shape) -> bool:
        """Whether an input may have this shape, or an input that is a shape these values."""
        return len(shape) == len(self.least) and all(
            low <= size <= high for low, size, high in zip(self.least, shape, self.most, strict=True)
        )

    def distance(self, shape: Shape) -> int:
        """The distance of a shape from the shape for which the engine was optimized: the sum of the differences of
        their dimensions."""
        return sum(abs(best - size) for best, size in zip(self.best, shape, strict=True))


class Profile(NamedTuple):
    """One of an engine's optimization profiles."""

    number: int
    shapes: Mapping[str, Bounds]  # of each input
    values: Mapping[str, Bounds]  # of each input that is itself a shape

    @property
    def max_batch_size(self) -> int:
        """The largest first dimension that all inputs may have; 0 if an input has no dimensions."""
        return min((bounds.most[0] if bounds.most else 0 for bounds in self.shapes.values()), default=0)


def choose(profiles: Sequence[Profile], shapes: Mapping[str, Shape], values: Mapping[str, Shape]) -> Profile:
    """The profile nearest to a batch's shapes among those that allow them. Raises InvalidArgumentError if none does."""
    nearest: Profile | None = None
    shortest = -1
    for profile in profiles:
        given = [(profile.shapes[name], shape) for name, shape in shapes.items()]
        given += [(profile.values[name], numbers) for name, numbers in values.items() if name in profile.values]
        if not all(bounds.allow(numbers) for bounds, numbers in given):
            continue
        distance = sum(bounds.distance(numbers) for bounds, numbers in given)
        if nearest is None or distance < shortest:
            nearest, shortest = profile, distance
    if nearest is None:
        asked = ", ".join(f"'{name}' {list(numbers)}" for name, numbers in {**shapes, **values}.items())
        known = "".join(f" {profile.number}[{profile.number}]" for profile in profiles)
        raise InvalidArgumentError(
            f"failed to find any Optimization Profile among [{known}] to support the requested dimensions "
            f"(or shape values): {asked}"
        )
    return nearest


def wanted_profiles(config: Config, instance_name: str, num_profiles: int) -> list[int]:
    """The numbers of the profiles that the instance's group names; [0] if it names none.

    Raises InvalidArgumentError for a profile that the engine lacks.
    """
    group_name = instance_name.rpartition("_")[0]
    group = next((group for group in config["instance_group"] if group["name"] == group_name), None)
    wanted = [int(profile) for profile in (group["profile"] if group else ())] or [0]
    for index in wanted:
        if index >= num_profiles:
            raise InvalidArgumentError(
                f"unable to load model '{config['name']}': instance '{instance_name}' asks for optimization profile "
                f"{index}, the engine has {num_profiles}"
            )
    return list(dict.fromkeys(wanted))


def check_max_batch_size(config: Config, profiles: Sequence[Profile], prefix: str) -> int:
    """The engine's largest batch. Raises InvalidArgumentError if the configuration allows larger ones."""
    supported = max(profile.max_batch_size for profile in profiles)
    if config["max_batch_size"] > supported:
        raise InvalidArgumentError(
            f"{prefix} model '{config['name']}': configuration specified max-batch {config['max_batch_size']} but "
            f"TensorRT engine only supports max-batch {supported}"
        )
    return supported


def graph_batch_sizes(config: Config) -> frozenset[int] | None:
    """The batch sizes for which optimization.cuda asks for CUDA graphs; None: no CUDA graphs; an empty set: graphs for
    any size."""
    cuda = config.get("optimization", {}).get("cuda", {})
    if not cuda.get("graphs"):
        return None
    return frozenset(spec["batch_size"] for spec in cuda.get("graph_spec", ()))
