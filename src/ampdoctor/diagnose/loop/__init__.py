"""The training loop's own faults: rules on the events of a loop, one file each."""
