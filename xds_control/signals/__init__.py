"""Signals about endpoints: catalogue, parsers, adapters, windows, and the scraper at the edge."""
