"""The darkroom, learners that play in it, and the histories of their learning."""
