"""Replicas that are folders of Parquet files."""
