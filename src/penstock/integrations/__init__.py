"""Penstock in web applications: one module each, imported only if it is used."""
