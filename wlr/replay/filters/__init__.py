"""Replicas of chosen rows, columns and values: snapshots and steps are filtered before any engine sees them."""
