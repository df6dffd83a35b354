"""A discrete-event fleet that drives the real weights, keys, prefix index and picker: try a policy before traffic does."""
