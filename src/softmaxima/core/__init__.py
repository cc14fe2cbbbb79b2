"""What every room stands on: the contract of a map, checks of arguments, and the way of a call."""
