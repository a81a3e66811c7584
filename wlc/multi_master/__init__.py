"""Several masters of one database: each takes what the others published."""
