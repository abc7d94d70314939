"""Sequences in ring records: Triton's flags, and a correlation id as one word. Pure.

An integer id is its own word, a string's word is a keyed hash. So a client that wants to take part in another's
sequence must know its id; without the key it cannot search for a string with an equal hash.
"""

import hashlib

#: Triton's request flags.
START, END = 1, 2
FLAGS = START | END
#: In a BATCH_ITEM, the word of the flags has the sequence's slot, too, from this bit on; 0: none, the first slot is 1.
SLOT_SHIFT = 8
#: In a REQUEST to a split (batcher/splits.py) the word of the flags has the request's sticky key, of 32 bits, from this
#: bit on; 0: none.
STICKY_SHIFT = 32
_MAX_UINT64 = 2**64 - 1


def correlation_word(correlation_id: int | str, key: bytes) -> int:
    """The word of a correlation id in records; 0 without a sequence: for the integer 0 or an empty string."""
    if not correlation_id:
        return 0
    if not isinstance(correlation_id, str):
        return correlation_id & _MAX_UINT64
    # surrogatepass: JSON may have strings with surrogates. This takes 1.4 us for a string of 36 characters.
    hashed = hashlib.blake2b(correlation_id.encode("utf-8", "surrogatepass"), digest_size=8, key=key)
    return int.from_bytes(hashed.digest(), "little") or 1
