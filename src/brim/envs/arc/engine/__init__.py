"""What computes the steps: the definition, the compiled kernel, and JAX."""
