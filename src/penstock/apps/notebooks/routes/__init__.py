"""The routes of the notebook API."""
