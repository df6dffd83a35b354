"""Metrics, logs and tracing."""
