"""Measuring again what a file holds, the whole ladder over sizes, and suites of shapes with their goals."""
