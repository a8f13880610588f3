"""`specpipe eval run`: record, run twice, replay and compare, from one job file. Begin with `run_evaluation`."""
