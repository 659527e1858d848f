"""Linear algebra of tensors."""

from typing import TYPE_CHECKING, Any

from spmdsim.arrays import linalg as _inside
from spmdsim.arrays.linalg import *

if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __all__ = _inside.__all__

    def __getattr__(name: str) -> Any:
        """Return a name that is not public, or raise with the nearest right one."""
        return getattr(_inside, name)
