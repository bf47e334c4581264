"""Links and paths: check_docs.py [TREE]

Relative links in *.md must lead to an existing file, their #anchors to one of its headings. No text file may name a path
of one machine or the host of a package registry. Prints each line that breaks a rule and exits 1.
"""

import os
import re
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# Split, so that this file passes the rule.
MACHINE = re.compile(
    "|".join(
        [
            r"(?<![\w./$}])/wo" r"rk/\w",
            r"(?<![\w./$}])/ro" r"ot/[\w.]",
            r"(?<![\w./$}])/ho" r"me/\w",
            r"py" r"pi\.org|python" r"hosted\.org|deb\.deb" r"ian\.org",
        ]
    )
)


def files_of(tree):
    """Files that git tracks or would track; without git, everything outside build/."""
    listed = subprocess.run(
        ["git", "-C", tree, "ls-files", "-co", "--exclude-standard", "-z"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        return sorted(name for name in names if os.path.isfile(os.path.join(tree, name)))
    found = []
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if name not in ("build", ".git")]
        found += [os.path.relpath(os.path.join(folder, name), tree) for name in names]
    return sorted(found)


def text_of(path):
    with open(path, "rb") as file:
        data = file.read()
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def without_code(text):
    """The text with code blocks and code spans blanked, lines kept."""
    text = re.sub(r"^(```|~~~).*?^\1", lambda block: "\n" * block.group().count("\n"), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """The anchors of a document's headings."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*?)\s*#*$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(anchor)
    return found


def link_problem(tree, document, target):
    path, _, anchor = target.partition("#")
    base = os.path.dirname(document) if not path.startswith("/") else ""
    file = os.path.normpath(os.path.join(tree, base, path.lstrip("/"))) if path else os.path.join(tree, document)
    if not os.path.exists(file):
        return "leads nowhere"
    if anchor and file.endswith(".md") and anchor not in anchors(text_of(file) or ""):
        return "no such heading there"
    return None


def main():
    tree = sys.argv[1] if len(sys.argv) > 1 else "."
    problems = []
    for name in files_of(tree):
        text = text_of(os.path.join(tree, name))
        if text is None:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = MACHINE.search(line)
            if found:
                problems.append(f"{name}:{number}: {found.group()}: names one machine's path or a registry's host")
        if name.endswith(".md"):
            for number, line in enumerate(without_code(text).splitlines(), 1):
                for target in LINK.findall(line):
                    reason = None if ELSEWHERE.match(target) else link_problem(tree, name, target)
                    if reason:
                        problems.append(f"{name}:{number}: {target}: {reason}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
