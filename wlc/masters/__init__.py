"""The life cycle of a master: it claims a place in the farm, publishes, takes snapshots, prunes and stops."""
