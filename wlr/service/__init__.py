"""One process that follows, publishes, prunes, verifies and drills everything in a settings file."""
