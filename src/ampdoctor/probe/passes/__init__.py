"""One pass: in which precision, on which device, isolated from everything that was there before."""
