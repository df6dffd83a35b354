"""xds-control: live weights, headers and picks for Envoy in front of LLM inference servers."""

__version__ = "0.1.0"
