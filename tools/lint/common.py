# SPDX-License-Identifier: MIT
"""What the lint scripts share: which files there are, C without its comments and strings, and reporting."""
import argparse
import pathlib
import re
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
    """Every file that people write in some language: C, SQL, Promela, Python, shell, meson, make."""
    for path in walk(root):
        if path.suffix in (".c", ".h", ".sql", ".pml", ".py", ".sh") or path.name in (
                "meson.build", "meson_options.txt", "Makefile"):
            yield path
        elif path.suffix == "" and path.read_bytes()[:2] == b"#!":
            yield path


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


class Source:
    """A C file. `code` has comments and the insides of literals blanked, `plain` the comments only;
    both keep every line and column. `line_comments` are the numbers of the lines with a // comment."""

    TOKEN = re.compile(r"""(?P<comment>/\*.*?(?:\*/|\Z)|//(?:\\\n|[^\n])*)"""
                       r"""|(?P<literal>"(?:\\.|[^"\\\n])*(?:"|\n|\Z)|'(?:\\.|[^'\\\n])*(?:'|\n|\Z))"""
                       r"""|[^/"']+|.""", re.DOTALL)
    BLANK = re.compile(r"[^\n]")

    def __init__(self, text):
        self.line_comments = []
        code, plain = [], []
        for match in self.TOKEN.finditer(text):
            piece, kind = match[0], match.lastgroup
            blank = self.BLANK.sub(" ", piece) if kind else piece
            code.append(blank)
            plain.append(blank if kind == "comment" else piece)
            if piece.startswith("//"):
                self.line_comments.append(text.count("\n", 0, match.start()) + 1)
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
