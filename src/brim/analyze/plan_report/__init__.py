"""Reports on a plan: an HTML page, an image, and the numbers behind them."""
