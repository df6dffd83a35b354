"""A discrete-event fleet that drives the real weights and routing code."""
