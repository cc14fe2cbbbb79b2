"""Maps, losses and sums over scores that are shared among processes, on torch.distributed."""
