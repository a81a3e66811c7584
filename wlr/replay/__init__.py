"""Replay: make a replica from a snapshot, and roll it forward or back along the log."""
