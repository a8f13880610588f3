"""Runs of jobs, in five packages: `run` (from job to exit code), `driver`, `worker`, `store` (the output folder) and
`cluster` (Ray).

The modules here serve all five: `prepare` (inputs and models of a job), `messages` between driver and worker, `tuning`,
`failures`, `logs`, `interrupts`. Imported by the command line, the Python interface, the doctor and evaluations. Begin
with `run/run.py`.
"""
