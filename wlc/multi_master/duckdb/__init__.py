"""A DuckDB master that is one of several sites: it takes what others publish, and judges or is judged."""
