"""Schema statements from the farm: selected for the replica, checked, and run in DuckDB."""
