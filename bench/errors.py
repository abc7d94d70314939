"""The benchmark's error: something could not be measured, and the sentence says why."""


class BenchmarkError(Exception):
    """Raised where a server does not start, an answer is wrong, or a tool is missing."""
