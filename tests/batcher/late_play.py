"""Two clients, one of which may take its time to hear of a batcher, a worker, and batchers that die.

What a test of late clients has them do, one step after the other.
"""

from tests.batcher.star import CLIENT, MODEL, WORKER, End, Star
from tests.batcher.takeover_play import Play

LATE = CLIENT + 1


def star_of_two(config: dict[str, object], *, may_run_again: bool = False) -> tuple[Star, End, End, End]:
    """A star with a client, another one that will be late, and a worker."""
    star = Star()
    model = star.add_model(MODEL, config, may_run_again=may_run_again)
    return star, star.add_client(CLIENT), star.add_client(LATE), star.add_worker(WORKER, model)


class LatePlay(Play):
    """A play with a second client, which is late whenever a batcher has died."""

    def __init__(self, config: dict[str, object]) -> None:
        super().__init__(config, late=(LATE,))
        self.is_late = False
        self.has_said = False  # the late one, to the batcher of now, which does not know yet

    def end(self) -> None:
        """The late client reads, too."""
        self.receive()
        super().end()

    def ask_late(self) -> None:
        self.ask(LATE)

    def replace(self) -> None:
        super().replace()
        self.is_late, self.has_said = True, False

    def receive(self) -> None:
        """The late client reads at last."""
        if self.is_late:
            self.send()
            self.is_late = False
            self.now_ns += 10
            self.star.exchange.succession.receive_late(LATE, self.now_ns)

    def send(self) -> None:
        """The late client says what is open and what it holds; the batcher reads it when it is told so."""
        if self.is_late and not self.has_said:
            self.has_said = True
            self.send_again(LATE)

    def send_stale(self) -> None:
        """The late client says so to a dead batcher, as it believes; it will hear of the living one."""
        if self.is_late and not self.has_said:
            self.send_again(LATE)
