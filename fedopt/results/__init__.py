"""What one run leaves: folder, metrics file, checkpoint, card, identity, trackers."""
