"""Capture from PostgreSQL: a logical slot read on the beat, event triggers for the schema."""
