"""How the GPU backends reach their kernels."""
