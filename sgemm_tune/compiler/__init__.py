"""Kernels to cubins: sources, NVRTC through CuPy, a shared cache, a pool of processes. Needs no GPU."""
