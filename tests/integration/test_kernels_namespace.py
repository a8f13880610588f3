"""The folder `kernels/` at a checkout's root is importable as a namespace package; transformers looks for that name."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_transformers_ignores_the_kernels_folder_of_the_checkout() -> None:
    """Tests run with the checkout's root on sys.path, as `python` does there."""
    spec = find_spec("kernels")
    assert spec is not None and spec.origin is None, "kernels is an installed package here"
    assert str(ROOT / "kernels") in list(spec.submodule_search_locations or ())
    from transformers import LlamaForCausalLM
    from transformers.utils import is_kernels_available

    assert LlamaForCausalLM.__name__ and not is_kernels_available()


@pytest.mark.slow
def test_engine_imports_in_a_process_started_at_the_root() -> None:
    code = (
        "import kernels\nassert kernels.__file__ is None, 'not ours'\n"
        "from transformers import LlamaForCausalLM\nfrom specpipe.engine.build import build_engine\n"
        "print(LlamaForCausalLM.__name__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout) == (0, "LlamaForCausalLM\n"), shown.stderr
