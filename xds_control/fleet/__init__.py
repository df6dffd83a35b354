"""Endpoints, their life, and the snapshot of a fleet (pure)."""
