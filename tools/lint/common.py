# SPDX-License-Identifier: MIT
"""What the lint scripts share: which files there are, C without its comments and strings, and reporting."""
import argparse
import pathlib
import sys

C_FOLDERS = ("include", "src", "test", "bench", "examples")
SKIP = {"build", ".git", "__pycache__", "corpus", "node_modules", "semel-demo"}


def parse_root(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2],
                        help="the project to check (default: this one)")
    return parser.parse_args().root


def walk(folder):
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir():
            if path.name not in SKIP:
                yield from walk(path)
        else:
            yield path


def c_files(root, folders=C_FOLDERS):
    for folder in folders:
        yield from (path for path in walk(root / folder) if path.suffix in (".c", ".h"))


def code_files(root):
    """Every file that people write in some language: C, SQL, Python, shell, meson, make."""
    for path in walk(root):
        if path.suffix in (".c", ".h", ".sql", ".py", ".sh") or path.name in ("meson.build", "meson_options.txt",
                                                                              "Makefile"):
            yield path
        elif path.suffix == "" and path.read_bytes()[:2] == b"#!":
            yield path


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


class Source:
    """A C file. `code` has comments and the insides of literals blanked, `plain` the comments only;
    both keep every line and column. `line_comments` are the numbers of the lines with a // comment."""

    def __init__(self, text):
        self.line_comments = []
        code, plain = [], []
        i, n, line = 0, len(text), 1
        while i < n:
            start = i
            if text.startswith("/*", i):
                end = text.find("*/", i + 2)
                i = n if end < 0 else end + 2
                kind = "comment"
            elif text.startswith("//", i):
                self.line_comments.append(line)
                while i < n and (text[i] != "\n" or text[i - 1] == "\\"):
                    i += 1
                kind = "comment"
            elif text[i] in "\"'":
                i += 1
                while i < n and text[i] != text[start] and text[i] != "\n":
                    i += 2 if text[i] == "\\" else 1
                i = min(i + 1, n)
                kind = "literal"
            else:
                i += 1
                kind = "code"
            piece = text[start:i]
            blank = "".join("\n" if c == "\n" else " " for c in piece)
            code.append(piece if kind == "code" else blank)
            plain.append(blank if kind == "comment" else piece)
            line += piece.count("\n")
        self.code, self.plain = "".join(code), "".join(plain)


class Report:
    """Collects 'file:line: what is wrong; what would be right'."""

    def __init__(self, root):
        self.root, self.lines = root, []

    def add(self, path, line, text):
        self.lines.append(f"{path.relative_to(self.root)}:{line}: {text}")

    def exit(self):
        for line in self.lines:
            print(line)
        sys.exit(1 if self.lines else 0)
