"""How meshes, layouts and rules are written (pure): read, or refused in words, and said in other systems' words."""
