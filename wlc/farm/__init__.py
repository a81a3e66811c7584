"""The farm's format as a small library of its own; it knows no SQL engine."""
