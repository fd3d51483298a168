"""Notebooks: folders of files that an API and people change at the same time, kept in git."""
