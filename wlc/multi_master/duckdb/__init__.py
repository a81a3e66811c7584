"""A DuckDB master that is one of several sites: it takes transactions of other sites, and judges them or is judged."""
