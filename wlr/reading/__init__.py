"""Tables and changes of a farm, read straight from snapshots and the log."""
