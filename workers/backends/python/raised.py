"""What a model's code raises, as an Exception: so it is the answer to the requests, as in Triton, and no end of the
worker.

asyncio.CancelledError, GeneratorExit and KeyboardInterrupt are no Exceptions, nor are the classes that some libraries
cancel with. SystemExit stays what it is: a model that calls sys.exit() ends its process.
"""

import signal
import sys
from typing import NoReturn

from shoal.process import take_signal


class NoExceptionError(Exception):
    """Stands for what a model has raised that is no Exception, its `__cause__`."""


def is_answer(error: BaseException) -> bool:
    """Whether what a model has raised is the answer to its requests: all but a SystemExit and, outside workers, which
    take SIGINT without effect, what ends a test: a KeyboardInterrupt, or what pytest.fail and pytest.skip raise."""
    if isinstance(error, SystemExit):
        return False
    if isinstance(error, Exception) or signal.getsignal(signal.SIGINT) is take_signal:
        return True
    pytest = sys.modules.get("pytest")
    outcomes = () if pytest is None else (pytest.fail.Exception, pytest.skip.Exception)
    return not isinstance(error, (KeyboardInterrupt, *outcomes))


def raise_as_exception(error: BaseException) -> NoReturn:
    """Raise what a model has raised: as a NoExceptionError if it is an answer and no Exception, else unchanged."""
    if isinstance(error, Exception) or not is_answer(error):
        raise error
    raise NoExceptionError from error


def original(error: BaseException) -> BaseException:
    """What a model has raised itself."""
    return error.__cause__ or error if isinstance(error, NoExceptionError) else error
