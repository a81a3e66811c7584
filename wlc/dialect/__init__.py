"""Knowledge of SQL engines that capture and replay share."""
