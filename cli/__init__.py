"""The commands `wlc` and `wlr`: options in, reports out, nothing else."""
