"""Pictures of ARC: grids, tasks and episodes in a terminal, as PNG, GIF and SVG, and as pages for a browser."""
