"""What a replay has to do, decided without I/O: where it stops, what it can reach, how it is cut into steps."""
