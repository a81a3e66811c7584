"""A farm as a data source of Spark."""
