"""A run from a job file to its exit code: prepares, starts, resumes, reports; dry runs, following, inspecting.

The top of the pipeline: imports the driver, worker, store and cluster packages. Begin with `run.py`.
"""
