"""Knowledge of PostgreSQL that capture and replay share."""
