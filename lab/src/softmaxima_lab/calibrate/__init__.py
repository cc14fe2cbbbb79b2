"""Calibration of scores that somebody else computed."""
