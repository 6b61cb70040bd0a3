#!/usr/bin/env python3
"""Runs the commands of the pages for operators as root on a Debian machine, page by page.

    tests/operations/run.py ENTER …     ENTER … runs a command on the machine, such as `ssh root@machine`
    tests/operations/run.py             only checks that each block is run, or says why not

The pages are run twice, as they describe two kinds of installation: with one role, which owns the database, and with two
roles, of which the service's has the fewest privileges. Blocks marked `sh` and `sql` are commands, and so is the column of
the Debian package in the table of commands. Each must exit with 0. A comment on the line before a block can restrict it:

    <!-- not run: REASON -->    it needs something that the machine lacks
    <!-- one role -->           it is only for this kind of installation
    <!-- two roles -->

The machine has systemd and PostgreSQL, and in /root the packages that the pages install.
"""

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In the order in which an operator needs them: install, configure, watch, handle incidents, upgrade, restore. The restore is
# last, because what it leaves is checked at the end.
PAGES = [
    f"docs/{name}.md" for name in ("operations", "configuration", "monitoring", "runbook", "upgrade", "backup")
]
# The machine has two packages of it, the second as if it were later.
VERSION = re.search('^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
COMMANDS = ("sh", "sql")
OTHERS = ("conf", "json", "text", "yaml")
ROLES = ("one role", "two roles")
OWNER = {"one role": "petstore", "two roles": "petstore_owner"}
SETTINGS = "--env-file /etc/petstore/petstore.env"

# What the commands below a heading need, such as something to find.
BEFORE = {
    "Logs": f"""
key=$(sudo -u petstore petstore keys create --name caller {SETTINGS})
call() {{
  local path=$1
  shift
  curl --silent --show-error --header "Authorization: Bearer $key" "http://127.0.0.1:8080/v1/$path" "$@"
}}
for pet in 1 2 3 4 5 6 7; do call pets --json '{{"name": "Rex", "categoryId": 3, "status": "available"}}'; done
call store/orders --json '{{"petId": 7}}'
call store/orders/1/complete --request POST
systemctl stop 'postgresql@*'
call pets --json '{{"name": "Rex", "categoryId": 3}}' | grep unavailable
systemctl start postgresql
""",
}
# Makes room for the second installation.
RESET = """
systemctl stop petstore.socket petstore
for database in petstore petstore_replaced; do sudo -u postgres dropdb $database; done
sudo -u postgres dropuser petstore
"""
# A restored database has its owner, and the service serves it.
AFTER = """
wrong=$(sudo -u postgres psql --dbname petstore --tuples-only --no-align --command "
  SELECT oid::regclass::text, relowner::regrole FROM pg_class
  WHERE relnamespace = 'public'::regnamespace AND relowner <> 'OWNER'::regrole
  UNION ALL
  SELECT oid::regproc::text, proowner::regrole FROM pg_proc
  WHERE pronamespace = 'public'::regnamespace AND proowner <> 'OWNER'::regrole")
[ -z "$wrong" ] || { echo "not owned by OWNER: $wrong" >&2 && exit 1; }
key=$(sudo -u petstore petstore keys create --name after SETTINGS)
curl --silent --show-error --fail-with-body --header "Authorization: Bearer $key" 'http://127.0.0.1:8080/v1/pets?id=7' |
  grep '"sold"'
"""


@dataclass
class Block:
    page: str
    line: int
    heading: str
    language: str
    code: str
    comment: str

    def runs_with(self, roles: str) -> bool:
        return self.comment in ("", roles)

    def where(self) -> str:
        return f"{self.page}:{self.line}"


def table_column(lines: list[str], start: int) -> str:
    """The commands in the column of the Debian package, of the table at this line."""
    code = ""
    for row in lines[start + 2 :]:
        if not row.startswith("|"):
            break
        code += "".join(command + "\n" for command in re.findall(r"`([^`]+)`", row.split("|")[2]))
    return code


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    heading, comment, opened = "", "", None
    lines = (ROOT / page).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if opened:
            if line.strip() == "```":
                found.append(opened)
                opened = None
            else:
                opened.code += line + "\n"
        elif fence := re.fullmatch(r" *```(\w*)", line):
            opened = Block(page, number, heading, fence[1], "", comment)
        elif line.startswith("| to | Debian package"):
            found.append(Block(page, number, heading, "sh", table_column(lines, number - 1), ""))
        elif title := re.fullmatch(r"#+ (.*)", line):
            heading = title[1]
        note = re.fullmatch(r"<!-- (.*) -->", line)
        comment = note[1] if note else ""
    return found


def check(found: list[Block]) -> None:
    if not any(block.heading == "Commands" for block in found):
        sys.exit("docs/runbook.md: the table of commands was not found")
    for heading in sorted(BEFORE.keys() - {block.heading for block in found}):
        sys.exit(f"no page has commands below the heading {heading}")
    for block in found:
        if block.language not in COMMANDS + OTHERS:
            sys.exit(f"{block.where()}: a block must be marked {', '.join(COMMANDS + OTHERS)}, not `{block.language}`")
        is_known = block.comment in ("", *ROLES) or re.fullmatch(r"not run: .+", block.comment)
        if block.language in COMMANDS and not is_known:
            sys.exit(f"{block.where()}: unknown comment: {block.comment}")


def run(enter: list[str], where: str, script: str) -> str:
    """Runs a script as an operator would: command by command. The first that fails fails."""
    command = [*enter, "bash", "-c", f"cd /root; set -euo pipefail\n{script}"]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        sys.exit(f"{where}: did not end within two minutes\n{script}")
    if ended.returncode != 0:
        sys.exit(f"{where}: exited with status {ended.returncode}\n{script}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def run_block(enter: list[str], block: Block, roles: str) -> None:
    code = block.code.replace("owner=petstore_owner\n", f"owner={OWNER[roles]}\n")
    code = code.replace("petstore_OLD_", f"petstore_{VERSION}-1_").replace("petstore_NEW_", f"petstore_{VERSION}-2_")
    if block.language == "sql":
        # The service's role is a member of pg_monitor if it is not the owner; see roles.sql.
        user = "postgres" if roles == "one role" else "petstore"
        code = f"sudo -u {user} psql --dbname petstore --set ON_ERROR_STOP=1 <<'SQL'\n{code}SQL\n"
    output = run(enter, block.where(), code)
    if block.heading == "Logs" and not output.strip():
        sys.exit(f"{block.where()}: found nothing in the log")


def main(enter: list[str]) -> None:
    found = [block for page in PAGES for block in blocks(page)]
    check(found)
    commands = [block for block in found if block.language in COMMANDS]
    print(f"{sum(block.comment.startswith('not run') for block in commands)} of {len(commands)} blocks are not run")
    if not enter:
        return
    for roles in ROLES:
        if roles == "two roles":
            run(enter, "the second installation", RESET)
        heading = ""
        for block in commands:
            if not block.runs_with(roles):
                continue
            if block.heading != heading and block.heading in BEFORE:
                run(enter, f"before {block.heading}", BEFORE[block.heading])
            heading = block.heading
            started = time.monotonic()
            run_block(enter, block, roles)
            print(f"{block.where()} ({roles}): {heading}, {time.monotonic() - started:.1f} s", flush=True)
        run(enter, f"after {roles}", AFTER.replace("OWNER", OWNER[roles]).replace("SETTINGS", SETTINGS))


if __name__ == "__main__":
    main(sys.argv[1:])
