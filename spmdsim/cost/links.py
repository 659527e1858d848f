"""Alpha and beta of one level of a network, or of one range of message sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Latency and inverse bandwidth of one level of the network.

    Attributes:
        alpha: seconds per message.
        beta: seconds per byte.
    """

    alpha: float
    beta: float


@dataclass(frozen=True)
class Piece:
    """Alpha and beta of messages up to a size: MPI libraries change their protocol with the size.

    Attributes:
        limit: largest message in bytes this holds for; infinity for the last piece.
        alpha: seconds per message.
        beta: seconds per byte.
    """

    limit: float
    alpha: float
    beta: float


@dataclass(frozen=True)
class Rate:
    """What a class of operators takes on one rank: the slower of the two decides.

    Attributes:
        kind: the class, as :attr:`spmdsim.core.BoundRule.work` says.
        per_flop: seconds per operation.
        per_byte: seconds per byte read or written.
    """

    kind: str
    per_flop: float
    per_byte: float


def piecewise(pieces: tuple[Piece, ...], nbytes: float, beta: float) -> float:
    """Time of this many bytes by their range, or ``nbytes * beta`` without ranges; nothing for no bytes."""
    if nbytes <= 0:
        return 0.0
    for one in pieces:
        if nbytes <= one.limit:
            return one.alpha + nbytes * one.beta
    return nbytes * beta


def scaled(pieces: tuple[Piece, ...], alpha: float, beta: float | None = None) -> tuple[Piece, ...]:
    """Ranges with alpha and beta multiplied (both by the first factor if there is only one)."""
    b = alpha if beta is None else beta
    return tuple(Piece(one.limit, one.alpha * alpha, one.beta * b) for one in pieces)
