"""Samples as they come: from files, from games, from memory. Streams can say where they are and go on from there."""
