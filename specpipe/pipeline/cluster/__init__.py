"""Ray: connecting to a cluster, placing workers, running them as actors, and exporting metrics.

The only package of the pipeline that imports Ray. Begin with `backend.py`.
"""
