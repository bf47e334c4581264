"""Refuses the idioms that make our English hard to read: check_english.py [TREE]

Reads all tracked text that a person reads (sources, scripts, documents), prints each line that holds one, with the
words to use instead, and exits 1. CONTRIBUTING.md gives the rules; this finds only the worst breaches.
"""

import re
import sys

from check_docs import files_of, text_of

ENDINGS = (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".mk", ".yaml", "Makefile")
IDIOMS = [
    (r"\b[Ww]hoever\b|\b[Ww]homever\b", "name the process or thread"),
    (r"\b[Nn]obody\b|\b[Ee]verybody\b|\b[Ss]omebody\b|\banybody\b", "no process, every process, another process"),
    (r"(?<!there )\b(is|are|was|were) none\b", "does not exist, is invalid"),
    (r"(?<!there )\bis no (pair|list|number|name|file|such)\b", "is not a ..."),
    (r"\b(is|are|was|were) told\b|\btells? of\b|\bis asked (for|to)\b", "name the actor: the learner prints, requests, reads"),
    (r"\bwho (answers|asks|trains|reads|writes|has|is|waits|shares|may|runs|sleeps)\b", "which, or the thing's name"),
    (r", for (it|that|they|there|this|those|these|nothing) (is|are|was|were|has|have|had|may|can|does|do|would|will)\b", "because"),
    (r"\bthat there (is|are)\b|\bthat is there\b|\bthat are there\b", "there is; existing; the remaining ones"),
    (r"\b(is|are) believed\b|\bnot believed\b", "accepted; ignored"),
    (r"\bstand-?ins?\b", "emulator, responder, test actor: what it is"),
]


def main():
    tree = sys.argv[1] if len(sys.argv) > 1 else "."
    idioms = [(re.compile(pattern), instead) for pattern, instead in IDIOMS]
    found = 0
    for name in files_of(tree):
        if not name.endswith(ENDINGS) or name in ("tools/build/check_english.py", "CONTRIBUTING.md"):
            continue
        for number, line in enumerate((text_of(f"{tree}/{name}") or "").splitlines(), 1):
            for pattern, instead in idioms:
                match = pattern.search(line)
                if match:
                    found += 1
                    print(f"{name}:{number}: '{match[0]}': {instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
