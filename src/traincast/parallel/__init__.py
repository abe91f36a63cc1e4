"""How work and memory are laid out over devices."""
