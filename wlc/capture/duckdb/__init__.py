"""Capture from DuckDB, in the process that writes the database."""
