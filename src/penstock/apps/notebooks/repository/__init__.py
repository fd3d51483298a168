"""The repository: git for a notebook, and its protection against what a folder contains."""
