"""Notation of meshes, layouts and rules: parse it, check it, print it in other systems' words."""
