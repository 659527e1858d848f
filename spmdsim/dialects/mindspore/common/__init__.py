"""``mindspore.common``."""
