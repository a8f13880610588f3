"""Earlier answers that a run follows (`speculation.replay`): their files, and the run's index of them."""
