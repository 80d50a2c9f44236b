"""sgemm-tune: an autotuner for single-precision matrix multiplication on NVIDIA GPUs."""

__version__ = "0.1.0"
