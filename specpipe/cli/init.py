"""`specpipe init`."""

from __future__ import annotations

import json
from pathlib import Path

import click

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
# A job for specpipe. It runs as it is, on a laptop without a network:
#
#   specpipe run {job} --dry-run     what it would do
#   specpipe run {job}               do it; a second start goes on where the first one ended
#   specpipe doctor {job}            whether this machine can
#
# Lines that begin with "#" and a key show what else there is. Every key: docs/jobs.md.

model:
  target: builtin:tiny            # the model whose text you want: a Hugging Face name, or a folder
  draft: builtin:tiny             # a smaller one with the same vocabulary, which proposes tokens
  # dtype: auto                   # bfloat16 on a GPU, float32 on a CPU
  # max_model_len: 4096           # longest prompt + output in tokens; left out, what the target was made for
  # chat_template: chat.jinja     # instead of the model's own
  # chat_template_kwargs: {{enable_thinking: false}}

data:
  path: {prompts}
                                  # Parquet, Arrow or JSON lines; a file, a folder, a glob or a URI (s3://…)
                                  # with a column prompt, messages, conversations, prompt_token_ids or body
  # prompt: question              # the prompt's column, where it is called otherwise
  # limit: 100                    # only the first rows, to try things
  # system_prompt: Answer briefly.
  # on_too_long: truncate_left    # instead of an error row

sampling:
  temperature: 0                  # 0 is greedy
  max_new_tokens: 100
  # top_p: 0.95
  # repetition_penalty: 1.1       # also presence_penalty, frequency_penalty
  # logprobs: 0                   # write every token's log-probability; 5: and those of the 5 most likely ones
  # stop: ["Question:"]
  # defaults: model               # for keys left out here: the model's generation_config.json

speculation:
  policy: goodput                 # as many tokens as pay at the number of rows that run, up to:
  num_speculative_tokens: 3
  # policy: "off"                 # plain decoding, to compare with
  # proposer: ngram               # drafts from the row's own words, without a draft model

workers:
  count: auto                     # one for each GPU
  slots: 16                       # rows that a worker generates at once; 64 and more on a large GPU

output:
  path: {runs}
  # keep_columns: [category]      # columns of the input to copy
  # max_failed_rows: 10           # more bad rows than this end the run with exit code 3
"""


@click.command(short_help="Write a job file to start from.")
@click.argument("path", type=click.Path(dir_okay=False), default="job.yaml")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
def init(path: str, overwrite: bool) -> None:
    """Write a commented job file to PATH (job.yaml), with prompts beside it. Both run as they are."""
    from specpipe.errors import JobError

    job = Path(path)
    prompts = job.with_name(f"{job.stem}-prompts.jsonl")
    rows = [{"id": f"p{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(_PROMPTS)]
    texts = {
        job: _JOB.format(job=job, prompts=json.dumps(str(prompts)), runs=f"runs/{job.stem}"),
        prompts: "".join(json.dumps(row) + "\n" for row in rows),
    }
    if there := [str(file) for file in texts if file.exists() and not overwrite]:
        raise JobError(f"{' and '.join(there)} is there already; give another PATH, or --overwrite")
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobError(f"{error.filename} cannot be written: {error.strerror}") from error
    click.echo(f"Wrote {job} and {prompts}. Start with: specpipe run {job}")
