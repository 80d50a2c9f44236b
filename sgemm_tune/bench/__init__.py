"""Measuring again what a file holds, and the whole ladder over sizes."""
