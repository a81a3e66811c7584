"""Relays: copies of a master's farm database with the same bytes, for replicas to read."""
