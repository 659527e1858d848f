"""Layouts cut, explained and compared (pure): ``.shard`` cuts, a derivation in steps, pieces, two meshes refined to one."""
