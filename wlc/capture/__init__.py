"""Capture: one adapter per source turns the changes of its transactions into journalled change sets."""
