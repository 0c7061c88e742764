"""Published experiments: set-up, claims, figures, what is kept."""
