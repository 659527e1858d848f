"""Pickle: the functions that convert Python objects to bytes for messages, and back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from spmdsim.simulation.data.memory import buffer


class Pickle:
    """A pair of functions that convert objects to bytes and back.

    Args:
        dumps: function of an object, or of an object and a protocol; None: that of the module pickle.
        loads: function of bytes; None: that of the module pickle.
        protocol: second argument of ``dumps``; None: the default of the module pickle, or no argument.
        threshold: bytes from which on ``dumps_oob`` returns a buffer of its own; None: 262,144.

    Attributes:
        is_default: True if both functions are those of the module pickle.
    """

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[[Any], Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self._dumps, self._loads = dumps, loads
        self._set_protocol(protocol)
        self._set_threshold(threshold)
        self.is_default = dumps is None and loads is None and protocol is None

    def _set_protocol(self, protocol: int | None) -> None:
        """Set the protocol; None: the default of the module pickle, or no argument for another ``dumps``."""
        default = pickle.DEFAULT_PROTOCOL if self._dumps is None or self._dumps is pickle.dumps else None
        self._protocol = default if protocol is None else protocol

    def _set_threshold(self, threshold: int | None) -> None:
        """Set the threshold in bytes; None: 262,144."""
        self._threshold = 1 << 18 if threshold is None else threshold

    PROTOCOL = property(lambda self: self._protocol, _set_protocol)
    THRESHOLD = property(lambda self: self._threshold, _set_threshold)

    def dumps(self, obj: Any) -> bytes:
        """Return the bytes of an object."""
        arguments = () if self.PROTOCOL is None else (self.PROTOCOL,)
        return (self._dumps or pickle.dumps)(obj, *arguments)

    def loads(self, data: Any) -> Any:
        """Return the object of bytes."""
        return (self._loads or pickle.loads)(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[buffer]]:
        """Return the bytes of an object without its large buffers, and these buffers.

        Args:
            obj: the object.
        """
        buffers: list[buffer] = []

        def keeps_inside(pickled_buffer: pickle.PickleBuffer) -> bool:
            """Return True if a buffer stays in the bytes of the object."""
            view = pickled_buffer.raw()
            if view.nbytes < self.THRESHOLD:
                return True
            buffers.append(buffer.frombuffer(view))
            return False

        protocol = pickle.HIGHEST_PROTOCOL if self.PROTOCOL is None or self.PROTOCOL < 0 else self.PROTOCOL
        return pickle.dumps(obj, max(protocol, 5), buffer_callback=keeps_inside), buffers

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        """Return the object of bytes and of the buffers that ``dumps_oob`` returned with them."""
        return pickle.loads(data, buffers=buffers)


#: The functions of lower-case calls, which a program can replace by ``MPI.pickle.__init__(dumps, loads)``.
PICKLE = Pickle()
