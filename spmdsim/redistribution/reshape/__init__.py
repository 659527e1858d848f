"""Reshapes across layouts: ``factor`` sees them as redistributions of a finer shape, ``flat`` is for those that are none."""
