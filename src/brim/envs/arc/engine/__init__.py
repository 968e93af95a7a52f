"""Everything that computes steps: the definition, the compiled kernel, and the engine in JAX."""
