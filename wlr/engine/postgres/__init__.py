"""Replicas that live in a PostgreSQL database."""
