"""What makes pages of the manual: a page per command, a page per module, and the pictures in pages."""
