"""Comparisons: competitors are trained on the same data, and pairs of them differ by so much."""
