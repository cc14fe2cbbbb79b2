"""Tables from files: what a column is, what is wrong with it, and what a network reads of it."""
