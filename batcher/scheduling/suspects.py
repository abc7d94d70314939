"""Suspects: the contents of requests during whose execution an instance died. Requests with convicted contents are
refused.

    first death        a suspect: equal requests run alone from now on (trials.py)
    a death alone      convicted, if it is not the content's first death: equal requests are refused
    an answer          acquitted: the instance that executed the request is alive

A content that was executed with others is convicted by its third death, if it is the only suspect among them. A refusal
ends after `refusal_ns`; then the content is a suspect again, and one more death convicts it. Each refusal is twice as
long as the one before. Pure policy, runs in the batcher; the time is handed in.

Contents are compared by a sample of their bytes, which is cheap. A request is refused only if the digest of all its
bytes is that of the convicted content.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from shoal.errors import UnavailableError

#: A digest of 128 bits as two words: of a content's sample, or of all its bytes.
Digest = tuple[int, int]

#: Most suspects of one model; beyond that, the suspect whose last death is the longest ago is forgotten (ours).
MAX_SUSPECTS = 256
#: The number of deaths that convicts a content executed alone, and the number for one executed beside contents that are
#: not suspects.
DEATHS_ALONE, DEATHS_BESIDE_OTHERS = 2, 3
#: A refusal is at most this many times as long as the first (ours: 16 minutes if the first takes one).
MAX_FACTOR = 16


class Content(Protocol):
    """The content of a request, for comparison; its id does not count."""

    @property
    def sample(self) -> Digest:
        """The digest of a part of the bytes, the same part in requests of the same form."""
        ...

    def digest(self) -> Digest | None:
        """The digest of all bytes; None where there are too many."""
        ...

    def describe(self) -> str:
        """The content in words, without its bytes."""
        ...


class PoisonError(UnavailableError):
    """The refusal of a request whose content is convicted: how many instances the content has ended, and the time in ns
    until such requests are executed again."""

    def __init__(self, num_deaths: int, left_ns: int) -> None:
        super().__init__(f"it has ended {num_deaths} instances, and is refused for another {left_ns} ns")
        self.num_deaths = num_deaths
        self.left_ns = left_ns


class Suspect:
    """A content that was being executed when an instance died."""

    __slots__ = ("convicted", "num_deaths", "num_refusals", "refused_until_ns", "until_ns")

    def __init__(self) -> None:
        self.num_deaths = 0
        #: When the content stops being a suspect, in monotonic ns.
        self.until_ns = 0
        #: The digest of all bytes of the content that was convicted last; None if none was.
        self.convicted: Digest | None = None
        self.num_refusals = 0
        self.refused_until_ns = 0


class Suspects:
    """All suspects of one model, by the samples of their contents."""

    __slots__ = ("_refusal_ns", "_suspects")

    def __init__(self, refusal_ns: int) -> None:
        """`refusal_ns` is how long a content is refused the first time, and how long a suspect is remembered."""
        self._refusal_ns = refusal_ns
        # Changed by every method but `is_suspect` and `refusal`. Suspects by sample, in the order of the last deaths
        # for which they were suspected.
        self._suspects: OrderedDict[Digest, Suspect] = OrderedDict()

    def __len__(self) -> int:
        return len(self._suspects)

    def is_suspect(self, sample: Digest) -> bool:
        """Whether requests with this sample are to run alone."""
        return sample in self._suspects

    def refusal(self, content: Content, now_ns: int) -> PoisonError | None:
        """The refusal of a request with this content; None if it may be executed."""
        suspect = self._suspects.get(content.sample)
        if suspect is None or suspect.convicted is None or now_ns >= suspect.refused_until_ns:
            return None
        if content.digest() != suspect.convicted:
            return None
        return PoisonError(suspect.num_deaths, suspect.refused_until_ns - now_ns)

    def died(self, contents: Iterable[Content], num_executed: int, now_ns: int) -> list[tuple[Content, Suspect]]:
        """Note a death of an instance that was executing requests with these contents, `num_executed` requests in all.
        Returns the contents that this death convicts, with their suspects."""
        by_sample = {content.sample: content for content in contents}
        known = [sample for sample in by_sample if sample in self._suspects]
        convicted = []
        for sample, content in by_sample.items():
            suspect = self._suspects.setdefault(sample, Suspect())
            self._suspects.move_to_end(sample)
            suspect.num_deaths += 1
            suspect.until_ns = now_ns + self._refusal_ns
            is_alone = num_executed == 1 and suspect.num_deaths >= DEATHS_ALONE
            is_only_one = known == [sample] and suspect.num_deaths >= DEATHS_BESIDE_OTHERS
            if (is_alone or is_only_one) and self._convict(suspect, content, now_ns):
                convicted.append((content, suspect))
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        return convicted

    def _convict(self, suspect: Suspect, content: Content, now_ns: int) -> bool:
        digest = content.digest()
        if digest is None:
            return False
        length_ns = self._refusal_ns * min(MAX_FACTOR, 1 << suspect.num_refusals)
        suspect.convicted = digest
        suspect.num_refusals += 1
        suspect.refused_until_ns = now_ns + length_ns
        suspect.until_ns = suspect.refused_until_ns + length_ns
        return True

    def restore(self, sample: Digest, suspect: Suspect) -> None:
        """Take over a convicted content from a dead batcher."""
        self._suspects[sample] = suspect

    def lived(self, sample: Digest, now_ns: int) -> None:
        """Note that a request with this sample was answered: it is no suspect any more, unless a content with this
        sample is refused now."""
        suspect = self._suspects.get(sample)
        if suspect is not None and now_ns >= suspect.refused_until_ns:
            del self._suspects[sample]

    def forget_old(self, now_ns: int) -> None:
        """Forget the suspects whose `until_ns` has passed."""
        for sample in [sample for sample, each in self._suspects.items() if now_ns >= each.until_ns]:
            del self._suspects[sample]
