"""Triton's enumerations, as models see them."""

from enum import IntEnum


class TritonEnum(IntEnum):
    """An enumeration like those of Triton's Python backend, which pybind11 makes: a member has a name and a value,
    equals its number, is true even if its number is 0, and is written as `LogLevel.INFO`."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, form: str) -> str:
        return format(str(self), form)
