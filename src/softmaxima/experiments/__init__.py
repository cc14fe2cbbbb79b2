"""The experiments: each returns data, and none prints."""
