"""The mutations of `mutations.diff` fit the tree. Whether tests notice them, `mutations.py` tells."""

import ast
from collections import Counter

from mutations import MUTATIONS, ROOT


def test_each_mutation_can_be_made_in_the_code_as_it_is() -> None:
    counts = {mutation.name: mutation.count(ROOT) for mutation in MUTATIONS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert [name for name, count in Counter(mutation.name for mutation in MUTATIONS).items() if count > 1] == []


def test_each_mutation_changes_code_that_stays_python() -> None:
    """A mutation that Python cannot read would be noticed by any test."""
    unreadable = []
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        mutated = text.replace(mutation.old, mutation.new)
        assert mutated != text, mutation.name
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            unreadable.append(f"{mutation.name}: {error}")
    assert unreadable == []


def test_the_test_files_that_should_notice_exist() -> None:
    named = {name for mutation in MUTATIONS for name in mutation.tests}
    assert [name for name in sorted(named) if not (ROOT / f"tests/test_{name}.py").exists()] == []
    assert all(mutation.tests and mutation.breaks for mutation in MUTATIONS)
