"""What capture and replay both know of DuckDB."""
