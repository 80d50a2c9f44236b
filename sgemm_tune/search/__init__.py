"""The search: one finite space, samplers over it, studies that resume, a loop that keeps the GPU busy."""
