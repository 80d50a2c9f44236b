"""`python -m sgemm_tune`, the same as `sgemm-tune`."""

from sgemm_tune.cli import main

if __name__ == "__main__":
    main()
