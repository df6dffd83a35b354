"""A model server that speaks the real formats, a load, and the demo."""
