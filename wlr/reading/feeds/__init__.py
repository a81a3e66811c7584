"""Feeds: the changes of tables as records in a file or a Kafka topic."""
