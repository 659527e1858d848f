"""Settings of MindSpore that have no meaning here, so that programs need no change."""

from __future__ import annotations

from typing import Any

GRAPH_MODE = 0
PYNATIVE_MODE = 1


def set_context(**settings: Any) -> None:
    """Accepted and ignored: there is one mode, and it is eager."""


class _Runtime:
    """``ms.runtime``."""

    def set_memory(self, **limits: Any) -> None:
        """Accepted and ignored: memory is the machine's."""


runtime = _Runtime()
