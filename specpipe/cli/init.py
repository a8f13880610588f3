"""`specpipe init`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from specpipe.cli.options import overwrite_option

_PROMPTS = (
    "Hello, how are you?",
    "What is the capital of France?",
    "I have no plans for Sunday. Any ideas?",
    "Lena has 14 apples and buys 9 more. She gives 6 to Omar. How many apples does she have now?",
    "A book costs 7 dollars. How much do 5 books cost?",
    "I would like to try tennis this summer. Where should I start?",
    "What is 25 plus 17?",
    "Thank you for your help!",
)

_JOB = """\
# yaml-language-server: $schema={schema}
#
# A job for specpipe. It runs unchanged on a laptop without a network:
#
#   specpipe run {job} --dry-run     print the plan
#   specpipe run {job}               run it; run it again to resume
#   specpipe doctor {job}            check whether this machine can run it
#
# Lines that begin with "#" and a key show other options. All keys: docs/jobs.md.

model:
  target: builtin:tiny            # model that generates the text: a Hugging Face name or a folder
  draft: builtin:tiny             # smaller model with the same vocabulary, which proposes tokens
  # dtype: auto                   # bfloat16 on a GPU, float32 on a CPU
  # max_model_len: 4096           # most tokens of prompt and output; default: the target's limit
  # chat_template: chat.jinja     # Jinja file, instead of the model's template
  # chat_template_kwargs: {{enable_thinking: false}}

data:
  path: {prompts}
                                  # Parquet, Arrow or JSON lines; a file, a folder, a glob or a URI (s3://…)
                                  # with a column prompt, messages, conversations, prompt_token_ids or body
  # prompt: question              # name of the prompt's column, if it is another one
  # limit: 100                    # run only the first rows
  # system_prompt: Answer briefly.
  # on_too_long: truncate_left    # default: an error in the row

sampling:
  temperature: 0                  # 0 is greedy
  max_new_tokens: 100
  # top_p: 0.95
  # repetition_penalty: 1.1       # also presence_penalty, frequency_penalty
  # logprobs: 0                   # write each token's log-probability; 5: also the 5 most likely tokens
  # stop: ["Question:"]
  # defaults: model               # take missing keys from the model's generation_config.json

speculation:
  policy: goodput                 # chooses the number of draft tokens by throughput, up to:
  num_speculative_tokens: 3
  # policy: "off"                 # plain decoding, for comparison
  # proposer: ngram               # drafts from n-grams of the row, without a draft model
  # replay: runs/job-{{yesterday}}  # drafts from the answers of an earlier run, with proposer replay or auto

workers:
  count: auto                     # one for each GPU
  slots: 16                       # rows that a worker runs at once; 64 or more on a large GPU

output:
  path: {runs}
  # keep_columns: [category]      # input columns to copy
  # max_failed_rows: 10           # with more failed rows, the exit code is 3
"""


@click.command(short_help="Write a commented job file to start from.")
@click.argument("path", type=click.Path(dir_okay=False), default="job.yaml")
@overwrite_option
@click.option("--schema", is_flag=True, help="Print the JSON schema of job files, and write nothing.")
def init(path: str, overwrite: bool, schema: bool) -> None:
    """Write a commented job file to PATH (default: job.yaml), and beside it example prompts and a JSON schema.

    The job runs without changes on the embedded models. Editors with a YAML language server complete and check its keys
    by the schema.
    """
    from specpipe.errors import JobError
    from specpipe.job.json_schema import json_schema

    if schema:
        click.echo(json_schema())
        return
    job = Path(path)
    schema_file = job.with_name(f"{job.stem}.schema.json")
    prompts = job.with_name(f"{job.stem}-prompts.jsonl")
    rows = [{"id": f"p{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(_PROMPTS)]
    texts = {
        job: _JOB.format(schema=schema_file.name, job=job, prompts=json.dumps(str(prompts)), runs=f"runs/{job.stem}"),
        prompts: "".join(json.dumps(row) + "\n" for row in rows),
        schema_file: json_schema() + "\n",
    }
    if existing := [str(file) for file in texts if file.exists() and not overwrite]:
        raise JobError(f"{' and '.join(existing)} already exists; give another PATH, or --overwrite")
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobError(f"{error.filename} cannot be written: {error.strerror}") from error
    click.echo(f"Wrote {job}, {prompts} and {schema_file}. Run the job with: specpipe run {job}")
