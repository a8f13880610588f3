"""At the root of a checkout `kernels/` is importable as a namespace package, which transformers must survive."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_transformers_imports_with_our_kernels_folder_beside_it() -> None:
    code = (
        "import kernels\nassert kernels.__file__ is None, 'not ours'\n"
        "from transformers import LlamaForCausalLM\nfrom specpipe.engine.build import build_engine\n"
        "print(LlamaForCausalLM.__name__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout) == (0, "LlamaForCausalLM\n"), shown.stderr
