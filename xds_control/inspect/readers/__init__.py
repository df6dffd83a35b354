"""One reader per family of formats: from a struct of raw values to the canonical prompt and the facts."""
