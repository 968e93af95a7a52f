"""The replay buffer: columns of samples, slots and keys, a sum tree, draws, snapshots, files."""
