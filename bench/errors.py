"""The one error of the benchmark: something could not be measured, and its sentence says why."""


class BenchmarkError(Exception):
    """A server that does not start, an answer that is wrong, a tool that is missing."""
