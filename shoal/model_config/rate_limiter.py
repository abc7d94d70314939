"""The rate limiter's resources: how much an execution of an instance needs, and how much of each there is.

Rules and sentences are Triton's. A resource belongs to each device, or is global. Its capacity is the largest need of
an instance; if --rate-limit-resource is given, it is the count given there, and 0 for a resource that is not listed.
Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

#: The device of a resource that all devices share.
GLOBAL = -1

#: One --rate-limit-resource: name, count, and the device, or None for every device.
Limit = tuple[str, int, int | None]


class Resource(NamedTuple):
    """A resource that instances share."""

    name: str
    device: int


class Demand(NamedTuple):
    """The resources that an instance needs for each execution; priority 2 gets half the turns of priority 1."""

    priority: int = 1
    resources: tuple[tuple[Resource, int], ...] = ()

    @classmethod
    def of(cls, group: Mapping[str, Any], device: int) -> "Demand":
        """The demand of an instance of this instance group on this device; the CPU's number is 0, as in Triton."""
        limiter = group.get("rate_limiter", {})
        needs: dict[Resource, int] = {}
        for each in limiter.get("resources", ()):
            resource = Resource(each["name"], GLOBAL if each["global"] else device)
            needs[resource] = max(int(each["count"]), needs.get(resource, 0))
        return cls(int(limiter.get("priority", 0)) or 1, tuple(sorted(needs.items())))

    @classmethod
    def from_message(cls, message: Any) -> "Demand":
        priority, resources = message
        return cls(priority, tuple([(Resource(*resource), count) for resource, count in resources]))


def capacities(demands: Iterable[Demand], limits: Iterable[Limit]) -> dict[Resource, int]:
    """The capacity of each resource that is needed."""
    listed = tuple(limits)
    needed: dict[Resource, int] = {}
    for demand in demands:
        for resource, count in demand.resources:
            needed[resource] = max(count, needed.get(resource, 0))
    if not listed:
        return needed
    return {
        resource: max([count for name, count, device in listed if _is_of(resource, name, device)], default=0)
        for resource in needed
    }


def faults(demands: Iterable[Demand], limits: Iterable[Limit]) -> Iterator[str]:
    """Sentences that say why instances with these demands cannot be served together."""
    needed, there = capacities(all_demands := tuple(demands), ()), capacities(all_demands, limits)
    for resource in needed:
        if resource.device == GLOBAL and any(each.name == resource.name and each != resource for each in needed):
            yield (
                f'Resource "{resource.name}" is present as both global and device-specific resource in the model '
                "configuration."
            )
    for resource, count in needed.items():
        if there[resource] < count:
            yield (
                f'Resource count for "{resource.name}" is limited to {there[resource]} which will prevent scheduling '
                f"of one or more model instances, the minimum required count is {count}"
            )


def _is_of(resource: Resource, name: str, device: int | None) -> bool:
    return name == resource.name and (device in (None, resource.device) or resource.device == GLOBAL)
