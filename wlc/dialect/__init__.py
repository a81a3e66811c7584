"""What capture and replay both know of SQL engines."""
