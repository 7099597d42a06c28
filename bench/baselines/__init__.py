"""`ada_propagate` as one would write it with other libraries: what the benchmark compares with."""
