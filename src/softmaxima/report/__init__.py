"""Figures, tables and pages, from what the experiments return."""
