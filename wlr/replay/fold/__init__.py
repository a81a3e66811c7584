"""Transactions folded into one net change, in SQL."""
