"""Views of files: the bytes of a file that a rank reads and writes, as the datatypes of ``Set_view`` say."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import BYTE, Datatype


class FileView:
    """The bytes of a file that are accessible, from a displacement on, in repetitions of a file type.

    Args:
        disp: the first byte.
        etype: the type in which offsets are counted.
        filetype: the type that is repeated; its gaps are not accessible.
        datarep: "native", "internal" or "external32", in which bytes are in big-endian order.

    Raises:
        MPIError: If the displacement is negative, the file type is not made of values of ``etype``, or the data
            representation has another name.
    """

    def __init__(
        self, disp: int = 0, etype: Datatype = BYTE, filetype: Datatype | None = None, datarep: str = "native"
    ) -> None:
        self.disp, self.etype, self.filetype = disp, etype, etype if filetype is None else filetype
        self.datarep = datarep
        self.unit = etype.require_committed().size
        self.tile = self.filetype.require_committed().size
        if disp < 0:
            raise MPIError("ERR_ARG", f"Set_view: disp must be 0 or more, got {disp}")
        if not self.unit or self.tile % self.unit:
            raise MPIError("ERR_ARG", "Set_view: filetype must have whole values of etype")
        if datarep not in ("native", "internal", "external32"):
            raise MPIError(
                "ERR_UNSUPPORTED_DATAREP",
                f"Set_view: datarep must be native, internal or external32, got {datarep!r}",
            )
        self.is_dense = self.filetype.is_dense

    def position_of(self, offset: int) -> int:
        """Return the byte of the file at which an offset is, counted in values of ``etype``."""
        return int(self._positions(offset * self.unit, 1)[0])

    def _positions(self, start: int, count: int) -> Any:
        """Return the positions in the file of some consecutive accessible bytes.

        Args:
            start: the number of the first byte among the accessible ones.
            count: how many there are.
        """
        numbers = np.arange(start, start + count)
        if self.is_dense:
            return self.disp + numbers
        tiles, inside = np.divmod(numbers, self.tile)
        return self.disp + tiles * self.filetype.extent + self.filetype.byte_offsets()[inside]

    def pieces(self, offset: int, nbytes: int) -> list[tuple[int, int]]:
        """Return pairs (position, length) of the consecutive bytes of the file that belong to some data.

        Args:
            offset: the offset of the data, in values of ``etype``.
            nbytes: bytes of the data.
        """
        if not nbytes:
            return []
        if self.is_dense:
            return [(self.disp + offset * self.unit, nbytes)]
        positions = self._positions(offset * self.unit, nbytes)
        breaks = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), nbytes]
        return [(int(positions[first]), last - first) for first, last in pairwise(breaks)]

    def count_before(self, size: int) -> int:
        """Return the number of whole values of ``etype`` in the accessible part of a file of ``size`` bytes."""
        room = max(size - self.disp, 0)
        if self.is_dense:
            return int(room // self.unit)
        tiles, remainder = divmod(room, self.filetype.extent)
        return int(
            (tiles * self.tile + np.count_nonzero(self.filetype.byte_offsets() < remainder)) // self.unit
        )


def read_pieces(descriptor: int, pieces: list[tuple[int, int]]) -> bytes:
    """Return the bytes at some places of a file; fewer at the end of the file.

    Args:
        descriptor: the file descriptor.
        pieces: pairs (position, length).
    """
    parts = []
    for position, length in pieces:
        contents = os.pread(descriptor, length, position)
        parts.append(contents)
        if len(contents) < length:
            break
    return b"".join(parts)


def write_pieces(descriptor: int, pieces: list[tuple[int, int]], data: bytes) -> None:
    """Write bytes to some places of a file, one after another.

    Args:
        descriptor: the file descriptor.
        pieces: pairs (position, length).
        data: the bytes.
    """
    start = 0
    for position, length in pieces:
        os.pwrite(descriptor, data[start : start + length], position)
        start += length
