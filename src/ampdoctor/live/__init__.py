"""What happens around the steps of a training loop that runs: its events, each with the user's line."""
