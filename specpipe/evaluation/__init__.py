"""Accuracy comparisons: lm-eval over the outputs of runs. Only harness and harness_models import lm-eval."""
