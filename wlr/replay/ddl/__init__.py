"""Schema statements from the farm: which a replica runs, what they may be, and how DuckDB runs them."""
