"""Other libraries' Transformers, and ours, at the same work: see `benchmarks/compare.py`."""
