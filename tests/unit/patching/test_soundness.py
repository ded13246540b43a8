"""Merged files are judged by themselves: they compile, and what is new in them can be reached."""

from __future__ import annotations

import pytest

from imagefactory.patching.soundness import Texts, fault

PYTHON = "def f(x):\n    if x:\n        return 1\n    return 2\n"
CUDA = "int f(int x) {\n  if (x) {\n    return 1;\n  }\n  return 2;\n}\n"


def found(name: str, upstream: str, merged: str, *, patched: str = "") -> str:
    return fault(name, Texts(upstream=upstream, merged=merged, old=upstream, patched=patched))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return 2\n", "return 2\n    x = 3\n", "never reached"),
        ("return 1\n", "return 1\n        x = 3\n", "never reached"),
        ("return 2\n", "return 2)\n", "does not compile"),
        ("return 2\n", "raise X\n    return 2\n", "never reached"),
        ("return 2\n", "x = 3\n    return x\n", ""),
        (
            "return 2\n",
            "try:\n        g()\n    finally:\n        return 2\n        x = 3\n",
            "never",
        ),
        (
            "return 2\n",
            "try:\n        return 2\n        x = 3\n    except E:\n        h()\n",
            "never",
        ),
        (
            "return 2\n",
            "for y in x:\n        break\n    else:\n        raise X\n        x = 3\n",
            "never",
        ),
        ("return 2\n", "for y in x:\n        continue\n        x = 3\n", "never reached"),
        ("return 2\n", "return 2  # \0\n", "does not compile"),
    ],
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # as cli.main does; Python 3.14 has more
def test_python_that_does_not_compile_or_is_never_reached_is_refused(
    old: str, new: str, why: str
) -> None:
    said = found("x.py", PYTHON, PYTHON.replace(old, new), patched=PYTHON)
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("  return 2;\n", "  return 2;\n  x = 3;\n", "never reached"),
        ("    return 1;\n", "    return 1;\n    g(x);\n", "never reached"),
        ("  return 2;\n", "  return g(2;\n", "do not match"),
        ("  }\n", "", "do not match"),
        ("  return 2;\n", "  return 2;\nagain:\n", ""),
        ("  return 2;\n", '  log("(");  // :-(\n  return 2;\n', ""),
    ],
)
def test_brackets_and_statements_after_a_return_are_all_that_is_judged_of_cuda(
    old: str, new: str, why: str
) -> None:
    said = found("x.cu", CUDA, CUDA.replace(old, new), patched=CUDA)
    assert why in said
    assert bool(why) == bool(said)


def test_a_statement_that_is_never_reached_is_shown_with_its_line() -> None:
    merged = CUDA.replace("    return 1;\n", "    return 1;\n\n    g(x);\n")
    said = found("x.cu", CUDA, merged, patched=CUDA)
    assert said == "x.cu:5 is never reached: it follows a return, break or continue"


@pytest.mark.parametrize(
    ("name", "text"), [("x.py", PYTHON + "    y\n"), ("x.py", "def (\n"), ("x.cu", "f(\n")]
)
def test_what_upstream_or_the_patch_has_already_is_not_a_fault(name: str, text: str) -> None:
    assert found(name, text, text, patched=text) == ""
    sound = PYTHON if name == "x.py" else ""
    assert text == "def (\n" or not fault(
        name, Texts(upstream=sound, merged=text, old=sound, patched=text)
    )
