"""What travels in a lower-case call: a Python object, pickled unless it cannot be changed anyway."""

from __future__ import annotations

import pickle
from typing import Any

from spmdsim.simulation.data.message_buffers import NO_ORDER, OBJECT

_IMMUTABLE = (int, float, complex, bool, type(None), str, bytes)
_IMMUTABLE_SET = frozenset(_IMMUTABLE)


class ObjectPayload:
    """One Python object on its way; every receiver gets a copy of its own.

    Attributes:
        nbytes: bytes of the pickle, or of what it would hold for a simple value.
    """

    __slots__ = ("_object", "_pickled", "nbytes")
    dtype = OBJECT
    elements = 1
    loose = False
    order = NO_ORDER

    def __init__(self, thing: Any) -> None:
        kind = type(thing)
        self._pickled: bytes | None = None
        self._object: Any = None
        if kind in _IMMUTABLE_SET:
            self._object = thing
            self.nbytes = len(thing) if kind in (str, bytes) else 8
        else:
            self._pickled = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
            self.nbytes = len(self._pickled)

    def load(self) -> Any:
        """A copy of the object, for the rank that runs."""
        return self._object if self._pickled is None else pickle.loads(self._pickled)


class ObjectTarget:
    """Where a lower-case receive puts its object: nowhere yet."""

    __slots__ = ()
    dtype = OBJECT
    elements = 1
    loose = False
    order = NO_ORDER
    nbytes = 0


OBJECT_TARGET = ObjectTarget()
