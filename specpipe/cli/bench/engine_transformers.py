"""`specpipe bench engine transformers`: the embedded pair here and in transformers."""

from __future__ import annotations

import json

import click

from specpipe.benchmark.bench_config import TransformersBench
from specpipe.cli.bench.engine_options import integer_option
from specpipe.cli.options import json_option

_DEFAULTS = TransformersBench()


@click.command(short_help="specpipe and transformers on the same prompts.")
@integer_option("--prompts", _DEFAULTS.prompts, "Prompts generated at once.")
@integer_option("--k", _DEFAULTS.k, "Draft tokens per round.", least=0, most=32)
@integer_option("--new-tokens", _DEFAULTS.new_tokens, "Tokens generated for each prompt.", least=2)
@json_option("Print one JSON object per line.")
def transformers(prompts: int, k: int, new_tokens: int, as_json: bool) -> None:
    """Compare the speed of specpipe with transformers: builtin:tiny, greedy, on this CPU.

    transformers runs its assisted generation, which takes one prompt at a time, and its plain generation of all prompts
    at once. All three must generate the same tokens; otherwise the command fails.
    """
    from specpipe.benchmark.transformers_comparison import compare_with_transformers

    result = compare_with_transformers(TransformersBench(prompts=prompts, k=k, new_tokens=new_tokens))
    if as_json:
        click.echo(json.dumps(result.to_dict()))
        return
    for way in result.ways:
        click.echo(
            f"{way.name:<36} {way.tokens_per_s:8,.0f} tok/s   {way.seconds:7.2f} s   {way.cpu_seconds:7.2f} CPU s"
        )
    click.echo(f"specpipe: {result.ratio:.2f} times the faster of the two others")
