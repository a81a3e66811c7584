"""A folder for PYTHONPATH: Python imports the module `sitecustomize` from it when it starts."""
