"""Figures, tables and pages, from what comparisons and studies return."""
