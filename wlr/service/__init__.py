"""One process that follows, publishes, prunes, verifies and drills what a file names."""
