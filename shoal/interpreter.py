"""The interpreter that runs Shoal: how it and Shoal were built, and how well it suits an installation.

scripts/_python runs this file with every interpreter that it considers: it imports only the standard library, and its
syntax is that of any Python 3.
"""

import importlib.machinery
import importlib.util
import platform
import sys
import sysconfig


def is_profile_guided() -> bool:
    """Whether CPython was built with profile-guided optimisation (PGO), as by `configure --enable-optimizations`.

    Python's own images, Fedora, conda and uv configure CPython so; pyenv does not unless it is told to. The packages of
    Debian and Ubuntu are built so too, but carry the build variables of their shared library, which is built without
    PGO: they are recognised by `deb_system`, a scheme of installation that they alone have.
    """
    is_configured = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return is_configured or "deb_system" in sysconfig.get_scheme_names()


def is_compiled() -> bool:
    """Whether this Shoal is a compiled build (setup.py), decided by one module, since all are in one library."""
    spec = importlib.util.find_spec("shoal.memo")
    return spec is not None and (spec.origin or "").endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def describe() -> str:
    """The interpreter and this build of Shoal in words, as in "CPython 3.11.2 with PGO, pure Python"."""
    interpreter = (
        platform.python_implementation(),
        platform.python_version(),
        "with" if is_profile_guided() else "without",
        "compiled" if is_compiled() else "pure Python",
    )
    return "%s %s %s PGO, %s" % interpreter  # noqa: UP031


def rate() -> str:
    """This interpreter's class for scripts/_python: "fast", "slow" (no PGO), "new" (later than those that were tried:
    frameworks may have no wheels for it), "bare" (cannot make venvs) or "old"."""
    if sys.version_info < (3, 10):  # noqa: UP036
        return "old"
    try:
        import ensurepip  # noqa: F401   # Debian has it in the package python3-venv
    except ImportError:
        return "bare"
    if sys.version_info >= (3, 15):
        return "new"
    return "fast" if is_profile_guided() else "slow"


if __name__ == "__main__":
    sys.stdout.write(rate() + "\n")
