"""Vectors as bytes, as engines answer them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def packed(values: Sequence[float]) -> bytes:
    """float32, little-endian as all of our machines are."""
    return array("f", values).tobytes()
