"""Figures, their styles, the page of results and how it is served. Knows nothing of runs."""
