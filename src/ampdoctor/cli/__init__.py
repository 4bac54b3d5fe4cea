"""The commands, one file each: the only place that prints, exits or knows about a terminal."""
