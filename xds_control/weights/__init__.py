"""Ring 1: from signals to integer weights, explained (pure)."""
