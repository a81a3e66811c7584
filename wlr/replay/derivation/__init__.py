"""Databases derived from another one: chosen tables, rows, columns and values, with a log of their own."""
