"""YAML that would blow up is refused in one sentence, in a process with a limit on its address space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bad_input_cases import refused, write
from tests.running import Done, pdplan

LIMITED = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from tests.running import within
from pathlib import Path
runs = [within(*words, cwd=Path(folder)) for folder, *words in json.loads(sys.argv[1])]
print(json.dumps([(done.returncode, done.stdout, done.stderr) for done in runs]))
"""


def limited(*asked: tuple[Path, *tuple[str, ...]]) -> list[Done]:
    """Command lines, each in its folder, one after the other in a process that cannot have much memory."""
    runs = [[str(word) for word in one] for one in asked]
    done = pdplan(json.dumps(runs), code=LIMITED)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [Done(words, *outcome) for words, outcome in zip(runs, found, strict=True)]


# --- files that are too large, too deep, or no text -----------------------------------------------------------------


def laughs(levels: int) -> str:
    """The billion laughs: every line repeats the one before ten times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "billion-laughs": (laughs(10), ("aliases (*name) repeat more than",)),
    "brackets": ("a: " + "[" * 200_000, ("w.yaml:1:", "nested deeper than 50 levels")),
    "blocks": ("".join(" " * depth + "a:\n" for depth in range(900)), ("nested deeper than 50 levels",)),
    "alias-of-itself": ("a: &a [*a]\n", ("w.yaml:1:", "nested deeper", "contains itself")),
    "python-tag": ("name: !!python/object/apply:os.system 'touch pwned'\n", ("w.yaml:1:", "tag", "not allowed")),
}


@pytest.fixture(scope="module")
def defused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Done]]:
    """The folder of each bomb, and what became of it."""
    folders = {case: tmp_path_factory.mktemp(case) for case in BOMBS}
    for case, folder in folders.items():
        write(folder, BOMBS[case][0])
    done = limited(*((folder, "optimize", "w.yaml") for folder in folders.values()))
    return {case: (folder, one) for (case, folder), one in zip(folders.items(), done, strict=True)}


@pytest.mark.parametrize("case", BOMBS)
def test_a_yaml_bomb_does_not_go_off(case: str, defused: dict[str, tuple[Path, Done]]) -> None:
    folder, done = defused[case]
    refused(done, *BOMBS[case][1])
    assert [path.name for path in folder.iterdir()] == ["w.yaml"]
