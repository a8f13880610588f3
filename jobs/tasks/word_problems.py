"""How a word problem is scored: the share of its answers (one, or `repeats` of them) that name the right number."""

from __future__ import annotations


def score(doc: dict[str, object], results: list[list[str]]) -> dict[str, float]:
    """results: for the document's one request, the number that the filter found in each answer."""
    answers = [answer.replace(",", "") for answer in results[0]]
    return {"exact_match": sum(answer == str(doc["answer"]) for answer in answers) / len(answers)}
