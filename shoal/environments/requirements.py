"""The local files on which an environment from a requirements.txt depends.

These are the file itself, those that it names with -r and -c, and each wheel, directory of wheels and project whose
path is in one of them. The files are read as pip reads them, except for variables. A word that is mistaken for a path
costs a needless installation when that file changes; a path that is missed would leave a change without effect.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

#: A line that goes on in the next one; a comment.
_CONTINUED, _COMMENT = re.compile(r"\\\r?\n"), re.compile(r"(^|\s)#.*")
#: The beginning of a line that names another requirements file.
_NESTED = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[\s=]*")
#: A word: perhaps an option, the name of a package with "@", "file:"; the path; perhaps extras, marker, fragment.
_WORD = re.compile(r"(?:-[ef]|--[a-z-]+=)?(?:[\w.-]+(?:\[[^\]]*\])?@)?(?:file:(?://(?:localhost)?(?=/))?)?([^\[;#]+)")
#: Entries of a project's directory that an installation leaves there, or that it does not read.
_NO_SOURCE = re.compile(r"\..*|build|__pycache__|.*\.egg-info")


def contents(requirements: Path, digest: Callable[[Path], str]) -> Iterator[bytes]:
    """All contents on which the environment depends, in order. `digest` returns the digest of a file's contents. Raises
    OSError."""
    seen, files = {requirements.resolve()}, [requirements]
    for file in files:  # the list grows by the files that its files name
        text = file.read_bytes()
        yield text
        for line in _lines(text.decode(errors="surrogateescape")):
            nested = _NESTED.match(line)
            # Other paths are relative to the directory where pip runs.
            found = _paths(line[nested.end() :], file.parent) if nested else _paths(line, requirements.parent)
            for path in found:
                if (place := path.resolve()) in seen:
                    continue
                seen.add(place)
                if nested:
                    files.append(path)
                else:
                    yield from _tree(path, digest)


def _lines(text: str) -> Iterator[str]:
    for line in _CONTINUED.sub(" ", text.removeprefix("\ufeff")).splitlines():
        yield _COMMENT.sub("", line).strip()


def _paths(line: str, place: Path) -> Iterator[Path]:
    """The files and directories in a line. A word without a slash is not taken for a directory, unless the line begins
    with an option or a dot: pip, too, takes such a word for the name of a package."""
    for word in line.split():
        found = _WORD.match(word.strip("\"'"))
        path = place / unquote(found[1]) if found else place
        if found and (os.path.isfile(path) or (os.path.isdir(path) and (line[0] in "-." or "/" in word))):
            yield path


def _tree(path: Path, digest: Callable[[Path], str]) -> Iterator[bytes]:
    """A file's digest; or the digests of a directory's files with their names, and the directory's path, since an
    editable project is used where it lies."""
    if path.is_file():
        yield digest(path).encode()
        return
    yield os.fsencode(path.resolve())
    for directory, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not _NO_SOURCE.fullmatch(name))
        for file in sorted(Path(directory, name) for name in files if not _NO_SOURCE.fullmatch(name)):
            if file.is_file():
                yield os.fsencode(file.relative_to(path))
                yield digest(file).encode()
