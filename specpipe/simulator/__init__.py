"""Simulator of the speculation policy: the real policy and its observers, driven by simulated rounds.

May import core, errors and speculation. Begin with simulation.py (`simulate`) and policy_run.py (`PolicyRun`).
"""
