"""Replay in Spark's tasks."""
