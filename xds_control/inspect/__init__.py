"""Ring 2: from request bytes to facts (pure)."""
