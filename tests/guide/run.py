#!/usr/bin/env python3
"""Runs the examples of the pages and compares what they print with what the pages show.

    tests/guide/run.py                  every page in PAGES, in each of its languages, and those in TEST_PAGES
    tests/guide/run.py PAGE LANGUAGE    one page in one language, against the service at PETSTORE_URL
    tests/guide/run.py PAGE             one of TEST_PAGES

An example is a fenced block marked `sh`, `ts` or `python`. If the next block is marked `text`, it is the expected
output; otherwise the example must print nothing. A block marked `console` has one example per line that starts with
`$ `, each followed by its output. The examples of one language form one program, in the order of the page, so each can
use the variables of the previous ones. A comment on the line before a block excludes it:

    <!-- not run: REASON -->

Lines that a page quotes from a program are not run either, because the program has its own test. They must be in the file that
the comment names, next to each other:

    <!-- from examples/payment/payment.py -->

Each language gets its own service and database, so a reader who follows one language sees the ids that the page shows. Its
orders expire after 15 minutes, as those of `petstore demo`.
The commands of a `console` start their own service, in an empty database, on a free port instead of 8080.

On a page in TEST_PAGES, the examples in Python and in TypeScript are test files. Its commands start a service on a free port
and run both files, which must pass.

Needs target/clients (scripts/clients build) and the debug build.
"""

import difflib
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "target/clients"
TOOLS = ROOT / "target/tools/clients"
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/orders.md",
    "docs/events.md",
    "clients/typescript/README.md",
    "clients/python/README.md",
]
TEST_PAGES = ["docs/sandbox.md"]
# Runs a command with a service.
SERVICE = ["env", "PETSTORE_ORDER_HOLD=15m", ROOT / "scripts/serve-for"]

# Placeholders in expected output, and what each one matches.
PLACEHOLDERS = {
    "<request id>": r"[0-9a-f]{32}",
    "<date>": r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT",
    "<event id>": r"[\w-]{39}",
    "<etag>": r'"[0-9a-f]{16}"',
    "<seconds>": r"\d{1,2}",
    "<time>": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
}
# In the output of a `console`, which shows no placeholders: what differs on every run.
VARYING = [PLACEHOLDERS["<time>"], r"\d+\.\d s", r"[\d,]+ per second"]

# A fenced block, with a comment on the line before.
BLOCK = re.compile(
    r"^(?P<not_run><!-- (?:not run: [^\n]+|from (?P<file>\S+)) -->\n)?```(?P<mark>\w*)\n(?P<content>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

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
    for block in BLOCK.finditer(text):
        not_run, mark, content = block["not_run"], block["mark"], block["content"]
        line = text.count("\n", 0, block.start("mark")) + 1
        if mark not in (*LANGUAGES, "text"):
            raise SystemExit(f"{page}:{line}: unknown block mark `{mark}`")
        if mark == "text" and before not in LANGUAGES:
            raise SystemExit(f"{page}:{line}: output without an example")
        if not_run:
            before = ""
            continue
        if mark == language == "console":
            found += commands(page, line, content)
        elif mark == language:
            found.append(Example(line, content, ""))
        elif mark == "text" and before == language:
            found[-1].output = content
        before = mark
    return found


def quotes_are_current(page: str) -> bool:
    """Returns whether the lines that a page quotes from files are still in these files. Prints those that are not."""
    good = True
    for block in BLOCK.finditer((ROOT / page).read_text()):
        if block["file"]:
            text = "\n" + (ROOT / block["file"]).read_text()
            # The page may show the lines with less indentation.
            if not any("\n" + textwrap.indent(block["content"], " " * width) in text for width in range(20)):
                print(f"{page}: these lines are not in {block['file']}:\n{block['content']}")
                good = False
    return good


def commands(page: str, line: int, content: str) -> list[Example]:
    """Returns the commands of a `console`: each starts with `$ `, and continues after a line that ends with `\\`."""
    found: list[Example] = []
    continues = False
    for number, text in enumerate(content.splitlines(keepends=True), line + 1):
        if text.startswith("$ "):
            found.append(Example(number, text[2:], ""))
        elif not found:
            raise SystemExit(f"{page}:{number}: output without a command")
        elif continues:
            found[-1].code += text
        else:
            found[-1].output += text
        continues = text.endswith("\\\n") and not found[-1].output
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
    mypy = [TOOLS / "python/bin/mypy", "--strict", "--no-error-summary", "--cache-dir", ROOT / "target/mypy", file]
    check(mypy, ROOT / "clients/python")
    return [str(TOOLS / "python/bin/python"), str(file)]


def run_console(parts: list[Example], directory: Path) -> list[str]:
    """Waits for the service after a command in the background, as a reader does, and stops it at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{}".format(free.getsockname()[1])
    script = "set -euo pipefail\ntrap 'kill -9 $(jobs -p)' EXIT\n"
    script += f"export PETSTORE_LISTEN={address} PETSTORE_ADMIN_LISTEN=127.0.0.1:0 PATH={ROOT}/target/debug:$PATH\n"
    for number, part in enumerate(parts):
        script += f"printf '\\036%s\\n' {number}\n" + part.code.replace("127.0.0.1:8080", address)
        if part.code.endswith("&\n"):
            script += f"curl --silent --output /dev/null --retry 50 --retry-connrefused --retry-delay 1 {address}\n"
    file = directory / "guide.sh"
    file.write_text(script)
    return ["bash", str(file)]


LANGUAGES = {"sh": run_sh, "ts": run_ts, "python": run_python, "console": run_console}


def matches(expected: str, printed: str, language: str) -> bool:
    """Returns whether a printed line matches the expected one, apart from what differs on every run."""
    if language == "console":
        for varying in VARYING:
            expected, printed = re.sub(varying, "<varying>", expected), re.sub(varying, "<varying>", printed)
        return expected == printed
    pattern = re.escape(expected)
    for placeholder, varying in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(placeholder), varying)
    return re.fullmatch(pattern, printed) is not None


def compare(page: str, language: str, part: Example, output: str) -> bool:
    expected = part.output.splitlines()
    printed = [line.rstrip() for line in output.splitlines()]  # headers end with CR
    # Show a matching line as on the page, so that the diff contains only the others.
    shown = [
        want if want is not None and matches(want, line, language) else line
        for want, line in zip(expected + [None] * len(printed), printed)
    ]
    if shown == expected:
        return True
    print(f"{page}:{part.line}: the output of the example differs from the page")
    print("\n".join(difflib.unified_diff(expected, shown, "page", "example", lineterm="")))
    return False


def judge(page: str, language: str, parts: list[Example], printed: str, errors: str, status: int) -> bool:
    """Returns whether the program printed what the page shows. Prints the differences."""
    outputs = re.split(f"{MARK}\\d+\n", printed)[1:]
    # Compare all outputs, even after a difference. If one is missing, its example did not run.
    good = [compare(page, language, part, output) for part, output in zip(parts, outputs)]
    if status != 0 or len(outputs) != len(parts):
        last = parts[max(0, len(outputs) - 1)]
        print(f"{page}:{last.line}: the example exited with status {status}\n{errors}")
        return False
    return all(good)


def run(page: str, language: str) -> bool:
    parts = examples(page, language)
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "python")}
    with tempfile.TemporaryDirectory() as directory:
        command = LANGUAGES[language](parts, Path(directory))
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    good = judge(page, language, parts, ended.stdout, ended.stderr, ended.returncode)
    if good:
        print(f"{page}: {len(parts)} examples in {language} passed")
    return good


# Both print how long they took, so their output is shown only on failure. `node --test` succeeds even if it finds no test.
TEST_COMMANDS = r"""
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
pytest() { "$PYTEST" -B -m pytest -p no:cacheprovider "$@" >log 2>&1 || { cat log >&2 && return 1; }; }
node() { command node "$@" >log 2>&1 && grep --quiet 'pass [1-9]' log || { cat log >&2 && return 1; }; }
"""


def run_test_page(page: str) -> bool:
    parts = examples(page, "sh")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run_python(examples(page, "python"), directory)
        (directory / "guide.py").rename(directory / "test_shop.py")
        run_ts(examples(page, "ts"), directory)
        (directory / "shop.test.js").write_bytes((PROJECT / "out/guide.js").read_bytes())
        (directory / "package.json").write_bytes((PROJECT / "package.json").read_bytes())
        (directory / "node_modules").symlink_to(PROJECT / "node_modules")
        command = run_sh(parts, directory)
        script = Path(command[-1])
        script.write_text(TEST_COMMANDS + script.read_text())
        packages = next((TOOLS / "python/lib").glob("python*/site-packages"))
        environment = os.environ | {
            "PATH": f"{ROOT}/target/debug:{os.environ['PATH']}",
            "PETSTORE_LISTEN": "127.0.0.1:0",
            "PYTEST": str(ROOT / "target/tools/python/bin/python"),
            "PYTHONPATH": f"{PROJECT}/python:{packages}",
        }
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    good = judge(page, "sh", parts, ended.stdout, ended.stderr, ended.returncode)
    if good:
        print(f"{page}: {len(parts)} examples in sh passed, and the tests that they run")
    return good


def run_all() -> bool:
    good = True
    for page in PAGES:
        good &= quotes_are_current(page)
        for language in LANGUAGES:
            if examples(page, language):
                service = [] if language == "console" else SERVICE
                command = [ROOT / "scripts/postgres", "with", *service, __file__, page, language]
                good &= subprocess.run(command).returncode == 0
    for page in TEST_PAGES:
        good &= run_test_page(page)
    return good


def main(arguments: list[str]) -> bool:
    match arguments:
        case []:
            return run_all()
        case [page]:
            return run_test_page(page)
        case [page, language]:
            return run(page, language)
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
