"""Score of a word problem: the share of its answers (one, or `repeats`) with the right number."""

from __future__ import annotations


def score(doc: dict[str, object], results: list[list[str]]) -> dict[str, float]:
    """Returns the score. results: for the document's one request, the filter's number in each answer."""
    answers = [answer.replace(",", "") for answer in results[0]]
    return {"exact_match": sum(answer == str(doc["answer"]) for answer in answers) / len(answers)}
