"""Where the waste is."""
