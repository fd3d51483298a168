"""Benchmarks of penstock beside its peers: one run, one table (`python -m benchmarks`)."""
