"""A shuffle that is computed one index at a time: any part of it costs only itself, and there is no list of
an epoch's samples.

It must never change: a run that resumes in a newer image is in the middle of an epoch. So it uses whole
numbers of Python and SHAKE-256, and neither torch nor numpy; tests/unit/test_data_order.py freezes it.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Protocol

LARGEST = 1 << 64
SMALL = 256
"""Up to this size there is a list. A network shuffles few indexes less evenly (measured below 16)."""
PAIRS = 4
"""Rounds of the network, two at a time: the right half changes the left, then the left changes the right.
With two pairs, neighbours in the order are seen to depend on each other; with three no longer."""
_WORD = (1 << 64) - 1


class Permutation(Protocol):
    """A permutation of the numbers below a size: ``permutation[index]`` is where it puts ``index``."""

    def __getitem__(self, index: int, /) -> int: ...


class Network:
    """A Feistel network permutes the numbers of as many bits as ``size`` needs; a result that is not below
    ``size`` goes through it again (cycle walking), less than once per index on average.

    A round hashes one half, of up to 32 bits, by multiply-add-shift with words of 64 bits (Dietzfelbinger
    1996).
    """

    def __init__(self, size: int, words: tuple[int, ...]) -> None:
        bits = (size - 1).bit_length()
        self._size = size
        self._right_bits = bits - bits // 2
        self._right_mask = (1 << self._right_bits) - 1
        self._left_shift = 64 - bits // 2
        self._right_shift = 64 - self._right_bits
        self._pairs = [words[first : first + 4] for first in range(0, len(words), 4)]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._size:
            raise IndexError(f"index is {index}, expected 0 to {self._size - 1}")
        left_shift, right_shift = self._left_shift, self._right_shift
        while True:
            left, right = index >> self._right_bits, index & self._right_mask
            for factor, summand, other_factor, other_summand in self._pairs:
                left ^= (right * factor + summand & _WORD) >> left_shift
                right ^= (left * other_factor + other_summand & _WORD) >> right_shift
            index = left << self._right_bits | right
            if index < self._size:
                return index


@lru_cache(maxsize=1024)
def permutation(size: int, *key: int) -> Permutation:
    """The permutation of this size that belongs to ``key``; those that are in use are made once."""
    if size <= SMALL:
        return sorted(range(size), key=_words(size, size, key).__getitem__)
    return Network(size, _words(4 * PAIRS, size, key))


def _words(number: int, size: int, key: tuple[int, ...]) -> tuple[int, ...]:
    named = "/".join(map(str, ("elasticjob.data", size, *key)))
    return struct.unpack(f"<{number}Q", hashlib.shake_256(named.encode()).digest(8 * number))
