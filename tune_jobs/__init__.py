"""Everything that is Ray Tune: studies over whole runs."""
