#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that every public function is in the manual, and nothing else, that links between documents lead somewhere,
that the lines of the log that operators are told to look for are those of the program, and that the files and
functions that a page of docs sends its readers to are in src."""
import re

import common

MANUAL = "man/libsemel.3.scd"
FUNCTION = re.compile(r"^SEMEL_API\s[^;]*?\b(semel_\w+)\(", re.MULTILINE)
NAMED = re.compile(r"\b(semel_\w+)(?=\*?\()")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A sentence, or an item of a list, about the log, and what it quotes: three words or more, and no command.
SENTENCE = re.compile(r"(?:[^.`]|`[^`]*`|\.(?!\s))+")
LOG = re.compile(r"(?<!audit )(?<!server's )\b(?:log|logs|logged)\b(?!\.)")
QUOTED = re.compile(r"`((?!semel |curl |psql |journalctl |systemctl )[a-z_]+(?: [^`\s]+){2,})`")
# `room/file.c`, and the function or table of it that stands right behind.
PLACE = re.compile(r"`((?:[a-z]+)/[a-z_0-9]+\.[ch])`(?:\s`([a-z_0-9]+)`)?")
LITERAL = r'"((?:[^"\\\n]|\\.)*)"'


def anchors(text):
    """The names of a page's headings, as they are linked to."""
    for line in text.split("\n"):
        if line.startswith("#"):
            title = re.sub(r"[^\w\s-]", "", line.lstrip("#").strip().lower())
            yield re.sub(r"\s", "-", title)


def check_manual(root, report):
    public = {}
    for path in common.c_files(root, ("include",)):
        for match in FUNCTION.finditer(common.read(path)):
            public[match[1]] = path
    manual = root / MANUAL
    text = common.read(manual) if manual.is_file() else ""
    for name, path in sorted(public.items()):
        if not re.search(rf"\b{name}\b", text):
            report.add(path, 1, f"{name} is not in {MANUAL}; describe it there")
    for match in NAMED.finditer(text):
        if match[1] not in public:
            report.add(manual, text.count("\n", 0, match.start()) + 1, f"there is no function {match[1]}; take it out")


def check_links(root, report):
    pages = [path for path in [*common.walk(root)] if path.suffix == ".md"]
    for page in pages:
        text = common.read(page)
        for match in LINK.finditer(text):
            target, _, anchor = match[1].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            to = page if target == "" else page.parent / target
            line = text.count("\n", 0, match.start()) + 1
            if not to.exists():
                report.add(page, line, f"links to {match[1]}, which is not there; correct it")
            elif anchor and to.suffix == ".md" and anchor not in anchors(common.read(to)):
                report.add(page, line, f"links to {match[1]}; that page has no such heading")


def spoken(root):
    """The texts of the program, those that are broken over lines in one piece."""
    for path in common.c_files(root, ("src",)):
        for match in re.finditer(rf"(?:{LITERAL}\s*)+", common.read(path)):
            yield "".join(re.findall(LITERAL, match[0]))


def check_log_texts(root, report):
    """A word of the quotation with a capital, a digit or a sign stands for anything: a name, a number, a field."""
    texts = "\n".join(spoken(root))
    for page in [root / "docs/operating.md", *sorted((root / "docs/runbooks").glob("*.md"))]:
        text = common.read(page) if page.is_file() else ""
        for block in re.finditer(r"(?:(?!\n\n|\n *- |\n *\d\. |\n```).)+", text, re.DOTALL):
            for sentence in SENTENCE.finditer(block[0]):
                for quoted in QUOTED.finditer(sentence[0]) if LOG.search(sentence[0]) else ():
                    words = [re.escape(word) if re.fullmatch(r"[a-z_]+[,:;]?", word) else r"[^\n]*?"
                             for word in re.sub(r" \w+=.*", "", quoted[1], flags=re.DOTALL).split()]
                    if not re.search(r"\s?".join(words), texts):
                        line = text.count("\n", 0, block.start() + sentence.start() + quoted.start()) + 1
                        report.add(page, line, f"quotes `{quoted[1]}` of the log; no text in src is like that")


def check_places(root, report):
    for page in sorted((root / "docs").glob("*.md")):
        text = common.read(page)
        for match in PLACE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            tops = (root / "src", root, root / "include")
            path = next((top / match[1] for top in tops if (top / match[1]).is_file()), None)
            if path is None:
                report.add(page, line, f"sends readers to {match[1]}, which is not there; correct it")
            elif match[2] and not re.search(rf"^[a-z].*\b{match[2]}\b", common.read(path), re.MULTILINE):
                report.add(page, line, f"sends readers to {match[2]} in {match[1]}; it is not there")


def main():
    root = common.parse_root(__doc__)
    report = common.Report(root)
    check_manual(root, report)
    check_links(root, report)
    check_log_texts(root, report)
    check_places(root, report)
    report.exit()


main()
