"""Penstock in Django: a backend for its Tasks framework, in the project's own database.

Put `penstock.django` into `INSTALLED_APPS`, and `penstock.django.backend.PenstockBackend` into
`TASKS`. Needs `penstock[django]`.
"""
