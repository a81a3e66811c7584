"""Replay: a replica is made from a snapshot and rolled forward, or back, along the log."""
