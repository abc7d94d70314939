"""Units of metrics: the short names that handlers use, and those under which the server exports them."""


class Units:
    """The short names of units, and their full names."""

    def __init__(self) -> None:
        self.units = UNITS


UNITS = {
    "ms": "Milliseconds", "s": "Seconds", "percent": "Percent", "count": "Count",
    "MB": "Megabytes", "GB": "Gigabytes", "kB": "Kilobytes", "B": "Bytes",
}  # fmt: skip


def full_name(unit: str) -> str:
    """The full name of a unit; an unknown unit is returned as it is."""
    return UNITS.get(unit, unit)
