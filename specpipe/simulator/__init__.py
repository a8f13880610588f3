"""Simulator of speculation policies: driver, scheduler, tuner and policy of a run, over simulated rounds.

May import core, errors, engine, pipeline and speculation. Begin with simulation.py (`simulate`), then engine.py
(`SimulatedEngine`).
"""
