"""Random programs run on global tensors in any layout and are compared with NumPy and, if installed, torch."""
