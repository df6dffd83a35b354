"""A discrete-event fleet that drives the real weights, prefix keys and picker, to try a policy before traffic does."""
