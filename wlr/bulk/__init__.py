"""Spark as a reader of the farm and as the engine of bulk replays: the only home of pyspark."""
