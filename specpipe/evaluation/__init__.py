"""Accuracy of speculative runs: lm-eval over the outputs of runs, and comparison of runs.

Folders: `harness` (record requests, replay outputs), `compare` (two runs), `schedule` (a whole evaluation from one job
file), `export` (outputs in other programs' formats), `pages` (comparisons as Markdown and HTML). Begin with
`schedule/run_evaluation`. Only specpipe.cli imports this package. Only `harness/lm_eval_cli` and
`harness/lm_eval_models` import lm-eval.
"""
