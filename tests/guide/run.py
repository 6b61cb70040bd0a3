#!/usr/bin/env python3
"""Runs every example of the guide and compares its output with the output block that follows it.

    tests/guide/run.py                  every page in PAGES, in each of its languages
    tests/guide/run.py PAGE LANGUAGE    one page in one language, against the service at PETSTORE_URL

An example is a fenced block marked `sh`, `ts` or `python`. If the next block is marked `text`, it is the expected
output; otherwise the example must print nothing. The examples of one language form one program, in the order of the
page, so each can use the variables of the previous ones. Each language gets its own service and database, so a reader
who follows one language sees the ids that the page shows. Blocks marked `console` are not run; any other mark is an
error.

Needs target/clients (scripts/clients build) and the debug build.
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "target/clients"
TOOLS = ROOT / "target/tools/clients"
PAGES = ["docs/guide.md", "clients/typescript/README.md", "clients/python/README.md"]

# Placeholders in expected output, and what each one matches.
PLACEHOLDERS = {
    "<request id>": r"[0-9a-f]{32}",
    "<date>": r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT",
    "<etag>": r'"[0-9a-f]{16}"',
    "<seconds>": r"\d{1,2}",
    "<time>": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
}

# Printed before each example, followed by its index.
MARK = "\x1e"


@dataclass
class Example:
    line: int
    code: str
    output: str


def examples(page: str, language: str) -> list[Example]:
    found: list[Example] = []
    before = ""
    text = (ROOT / page).read_text()
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        mark, content = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        if mark not in ("sh", "ts", "python", "text", "console"):
            raise SystemExit(f"{page}:{line}: unknown block mark `{mark}`")
        if mark == "text" and before not in ("sh", "ts", "python"):
            raise SystemExit(f"{page}:{line}: output without an example")
        if mark == language:
            found.append(Example(line, content, ""))
        elif mark == "text" and before == language:
            found[-1].output = content
        before = mark
    return found


def program(parts: list[Example], mark: str) -> str:
    return "".join(mark.format(number) + "\n" + part.code for number, part in enumerate(parts))


def check(command: list[str | Path], directory: Path) -> None:
    if subprocess.run(command, cwd=directory).returncode != 0:
        raise SystemExit("type check of the examples failed")


def run_sh(parts: list[Example], directory: Path) -> list[str]:
    file = directory / "guide.sh"
    file.write_text("set -euo pipefail\n" + program(parts, r"printf '\036%s\n' {}"))
    return ["bash", str(file)]


def run_ts(parts: list[Example], directory: Path) -> list[str]:
    """Compiles the examples with the settings of the SDK's own examples, against the installed package."""
    file = PROJECT / "guide.ts"
    file.write_text(program(parts, r"console.log('\u001e{}');"))
    check([TOOLS / "typescript/node_modules/.bin/tsc", "--project", PROJECT], PROJECT)
    return ["node", str(PROJECT / "out/guide.js")]


def run_python(parts: list[Example], directory: Path) -> list[str]:
    """Type-checks the examples as strictly as the SDK."""
    file = directory / "guide.py"
    file.write_text(program(parts, r"print('\x1e{}', flush=True)"))
    mypy = [TOOLS / "python/bin/mypy", "--no-error-summary", "--cache-dir", ROOT / "target/mypy", file]
    check(mypy, ROOT / "clients/python")
    return [str(TOOLS / "python/bin/python"), str(file)]


LANGUAGES = {"sh": run_sh, "ts": run_ts, "python": run_python}


def matches(expected: str, printed: str) -> bool:
    """Returns whether a printed line matches the expected one, with its placeholders."""
    pattern = re.escape(expected)
    for placeholder, varying in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(placeholder), varying)
    return re.fullmatch(pattern, printed) is not None


def compare(page: str, part: Example, output: str) -> bool:
    expected = part.output.splitlines()
    printed = [line.rstrip() for line in output.splitlines()]  # headers end with CR
    # Show a matching line with its placeholders, so that the diff contains only the others.
    shown = [
        want if want is not None and matches(want, line) else line
        for want, line in zip(expected + [None] * len(printed), printed)
    ]
    if shown == expected:
        return True
    print(f"{page}:{part.line}: the output of the example differs from the page")
    print("\n".join(difflib.unified_diff(expected, shown, "page", "example", lineterm="")))
    return False


def run(page: str, language: str) -> bool:
    parts = examples(page, language)
    petstore = [ROOT / "target/debug/petstore", "keys", "create", "--name", "guide", "--rate-limit", "2/m"]
    limited = subprocess.run(petstore, check=True, capture_output=True, text=True).stdout.strip()
    environment = os.environ | {"PETSTORE_LIMITED_KEY": limited, "PYTHONPATH": str(PROJECT / "python")}
    with tempfile.TemporaryDirectory() as directory:
        command = LANGUAGES[language](parts, Path(directory))
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    outputs = re.split(f"{MARK}\\d+\n", ended.stdout)[1:]
    # Compare all outputs, even after a difference. If one is missing, its example did not run.
    good = [compare(page, part, output) for part, output in zip(parts, outputs)]
    if ended.returncode != 0 or len(outputs) != len(parts):
        last = parts[max(0, len(outputs) - 1)]
        print(f"{page}:{last.line}: the example exited with status {ended.returncode}\n{ended.stderr}")
        return False
    if all(good):
        print(f"{page}: {len(parts)} examples in {language} passed")
    return all(good)


def run_all() -> bool:
    good = True
    for page in PAGES:
        for language in LANGUAGES:
            if examples(page, language):
                service = [ROOT / "scripts/postgres", "with", ROOT / "scripts/serve-for"]
                good &= subprocess.run([*service, __file__, page, language]).returncode == 0
    return good


if __name__ == "__main__":
    sys.exit(0 if (run(*sys.argv[1:]) if len(sys.argv) == 3 else run_all()) else 1)
