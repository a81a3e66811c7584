"""Plans a replay without I/O: where it stops, which positions it can reach, and its steps."""
