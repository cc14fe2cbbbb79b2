"""The studies of the documentation: each returns data, and none prints."""
