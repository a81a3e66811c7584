"""The environment variable that limits the memory of an engine, and the hint that names it."""

MEMORY_VARIABLE = "WLR_MEMORY_LIMIT"
MEMORY_HINT = f"Give it more memory: export {MEMORY_VARIABLE}=8GB"
