"""`specpipe compare`."""

from __future__ import annotations

import click

from specpipe.cli.options import json_option


@click.command(short_help="Compare two runs, or two scored evaluations.")
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option("--metric", metavar="NAME", help="Compare only this metric.")
@click.option(
    "--logits",
    is_flag=True,
    help="Load the target model and report where greedy outputs differ because of a numerical tie.",
)
@json_option("Print all results as JSON.")
@click.option("--html", "html", type=click.Path(), metavar="FILE", help="Write the comparison as one HTML page.")
@click.option(
    "--certificate", type=click.Path(), metavar="FILE", help="Write a short Markdown text, for a pull request."
)
@click.pass_context
def compare(
    ctx: click.Context,
    a: str,
    b: str,
    metric: str | None,
    logits: bool,
    as_json: bool,
    html: str | None,
    certificate: str | None,
) -> None:
    """Compare B with A. Each is the output folder of a run, or a samples file or folder of lm-eval.

    The exit code is 1 if they differ by more than chance and rounding explain, otherwise 0.

    \b
      specpipe compare runs/plain runs/speculative --certificate certificate.md
    """
    from specpipe.cli.log_setup import configure_logging

    configure_logging()
    import json
    import os
    from pathlib import Path

    from specpipe.cli.comparison_table import print_comparison
    from specpipe.evaluation.compare.compare_paths import compare_paths
    from specpipe.evaluation.pages.certificate import certificate as markdown
    from specpipe.evaluation.pages.comparison_page import comparison_page

    comparison = compare_paths(a, b, metric=metric, logits=logits)
    if html:
        Path(html).write_text(comparison_page(comparison), encoding="utf-8")
    if certificate:
        page = os.path.relpath(html, Path(certificate).parent) if html else ""
        Path(certificate).write_text(markdown(comparison, page), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False))
    else:
        print_comparison(comparison)
    ctx.exit(1 if comparison.differs else 0)
