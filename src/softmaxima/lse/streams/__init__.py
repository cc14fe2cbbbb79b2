"""Sums of scores that come in blocks: from memory, files and pipes, merged in any order."""
