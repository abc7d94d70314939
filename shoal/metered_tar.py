"""The bytes of an untrusted tar for tarfile, which reads a header of any length, and the map of a sparse file, into
memory at once: more than headers need is refused. Pure but for reading.
"""

import tarfile
from typing import Any

#: The most bytes that headers may take beside NBYTES_PER_MEMBER for each member so far (ours).
MAX_HEADER_NBYTES = 4 << 20
#: Bytes of a member that are no content: header, padding, and the extended header of a long name or of attributes
#: (ours).
NBYTES_PER_MEMBER = 4096


class MeteredTar:
    """A file that tarfile reads a tar from. Its unpacker calls `admit` for each member before it reads the content."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        # Changed by admit and read.
        self._nbytes_left = MAX_HEADER_NBYTES

    def admit(self, content_nbytes: int) -> None:
        """Let a further member, with so many bytes of content, be read."""
        self._nbytes_left += content_nbytes + NBYTES_PER_MEMBER

    def read(self, nbytes: int) -> bytes:
        """Read at most so many bytes. Raises tarfile.ReadError where headers are too long."""
        if not 0 <= nbytes <= self._nbytes_left:
            raise tarfile.ReadError(f"its headers have more than {MAX_HEADER_NBYTES} bytes")
        found: bytes = self._file.read(nbytes)
        self._nbytes_left -= len(found)
        return found
