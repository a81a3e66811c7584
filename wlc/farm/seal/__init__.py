"""Checksums, signatures and encryption of the files of a farm, and the keys for them."""
