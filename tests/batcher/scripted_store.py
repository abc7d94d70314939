"""A store of shared answers in this process."""


class ScriptedStore:
    """A store in which a test puts what shall be found."""

    def __init__(self) -> None:
        self.deadline_ns: int | None = None
        self.asked: list[tuple[int, bytes, int]] = []
        self.kept: dict[bytes, bytes] = {}
        self.found: list[tuple[int, bytes | None]] = []
        self.is_there = True

    def ask(self, key: int, name: bytes, now_ns: int, deadline_ns: int = 0) -> bool:
        self.asked += [(key, name, deadline_ns)] * self.is_there
        return self.is_there

    def forget(self, key: int) -> bool:
        self.asked = [each for each in self.asked if each[0] != key]
        return True

    def keep(self, name: bytes, value: bytes, now_ns: int) -> None:
        self.kept[name] = value

    def step(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        found, self.found = self.found, []
        return found
