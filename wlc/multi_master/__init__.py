"""Several masters of one database: each takes the transactions of the others."""
