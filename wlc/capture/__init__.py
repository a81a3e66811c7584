"""Capture: one adapter per source turns what its transactions changed into journalled change sets."""
