"""One run: from config to objects, the loop, its life cycle, who takes its rows, hardware."""
