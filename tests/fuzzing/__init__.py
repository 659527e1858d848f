"""Random whole programs, run on global tensors in any layout and judged by numpy and, where installed, torch."""
