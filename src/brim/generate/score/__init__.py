"""Teacher forcing: exact log-probabilities and entropies of given responses, with and without gradients."""
