"""Triton kernels; imported as ugnn_fast.kernels. Importing this package does not import triton."""
