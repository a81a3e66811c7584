"""Places that hold the same bytes as a master's farm database: relays, which replicas can read instead of it."""
