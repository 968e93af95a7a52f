"""Write batches to NPZ files, and read them back."""
