"""The flight recorder for trainers of other libraries; each file needs its own, and no other."""
