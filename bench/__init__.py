"""Benchmarks of ugnn_fast against other ways to compute the same: `python -m bench.run --help`."""
