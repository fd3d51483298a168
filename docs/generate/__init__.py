"""Writes what the documentation takes from the code and from stored results."""
