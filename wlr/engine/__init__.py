"""Targets that a replay can write to: one adapter for each kind behind one contract, see `contract`."""
