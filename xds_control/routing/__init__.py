"""Ring 3: rules, model routes, prefix index, cost and picks (pure)."""
