"""The engine in pure JAX, on grids that are planes of bits."""
