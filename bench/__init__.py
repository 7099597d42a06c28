"""Benchmarks of ugnn_fast against other ways to compute the same: `ugnn-fast bench --help`."""
