"""A run from a job to its exit code; dry runs, and following, inspecting and reporting runs by their folder.

The top of the pipeline: imports the driver, worker, store and cluster packages. Begin with `run.py`.
"""
