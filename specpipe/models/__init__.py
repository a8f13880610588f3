"""Model loading: references, pairs, tokenizers and the embedded pair."""
