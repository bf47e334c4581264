"""Refuses the idioms that make our English hard to read: check_english.py [TREE]

Reads all tracked text that a person reads (sources, scripts, documents), prints each line that holds one, with the
words to use instead, and exits 1. CONTRIBUTING.md gives the rules; this finds only the worst breaches. Comments of C
may not begin with "of ..." (a fragment), nor break a line far from the margin in the middle of a sentence.
"""

import re
import sys

from check_docs import files_of, text_of

ENDINGS = (".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh", ".md", ".mk", ".yaml", "Makefile")
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
    (r"\blikewise\b", "also, the same; or repeat the word"),
    (r"\b(of|after|by|in|most|for|at|are|runs?) so (many|long)\b(?!.* (as|that)\b)", "N, that many, the time: name the quantity"),
    (r"\bby turns\b", "alternately, in turn"),
    (r"\b[Aa]lso (if|where)\b", "even if, even where"),
]
COMMENT = re.compile(r"^(?P<code>.*?)//(?P<text> .*)?$")
EARLY = 84  # a line that ends before this column, although the next word fits


def comment_faults(lines):
    """(number, words, what to do) of each comment of C that is a fragment or is broken early."""
    before = None  # column and text of a comment that the next line may continue
    for number, line in enumerate(lines, 1):
        match = COMMENT.match(line)
        if not match or '"' in match["code"] or "clang-format" in line:
            before = None
            continue
        column, text, alone = match.start("text") if match["text"] else len(line), match["text"] or "", not match["code"].strip()
        continues = before and alone and before[0] == column
        if not continues and re.match(r" of [a-z]", text):
            yield number, text.strip()[:20], "begin with the thing"
        if continues and re.match(r" [A-Za-z`(]", text):
            last = before[1]
            if "  " not in last + text and re.search(r"[a-z,`)]$", last) and column + len(last) + 1 + len(text.split()[0]) < EARLY:
                yield number - 1, last.strip()[-20:], "the next line's words fit: join and reflow"
        before = (column, text)


def main():
    tree = sys.argv[1] if len(sys.argv) > 1 else "."
    idioms = [(re.compile(pattern), instead) for pattern, instead in IDIOMS]
    found = 0
    for name in files_of(tree):
        if not name.endswith(ENDINGS) or name in ("tools/build/check_english.py", "CONTRIBUTING.md"):
            continue
        lines = (text_of(f"{tree}/{name}") or "").splitlines()
        for number, words, instead in comment_faults(lines) if name.endswith((".c", ".h", ".cu", ".cuh")) else ():
            found += 1
            print(f"{name}:{number}: '{words}': {instead}")
        for number, line in enumerate(lines, 1):
            for pattern, instead in idioms:
                match = pattern.search(line)
                if match:
                    found += 1
                    print(f"{name}:{number}: '{match[0]}': {instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
