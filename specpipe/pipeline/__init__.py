"""Runs of jobs, in five packages: `run` (a run from job to exit code), `driver`, `worker`, `store` (the output folder)
and `cluster` (Ray).

The modules here serve all five: `messages` between driver and worker, `failures`, `logs`, `interrupts`, `tuning`.
Imported by the command line, the Python interface, the doctor and evaluations. Begin with `run/run.py`.
"""
