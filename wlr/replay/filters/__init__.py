"""Replicas of chosen rows, columns and values: filters snapshots and steps before any engine sees them."""
