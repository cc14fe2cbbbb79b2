"""Intervals that hold logsumexp."""
