"""Knowledge of DuckDB that capture and replay share."""
