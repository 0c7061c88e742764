"""Files, overrides, composing, settings, schedules, tuned values."""
