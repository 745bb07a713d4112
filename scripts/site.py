#!/usr/bin/env python3
"""The documents as a site.

    scripts/site.py                 builds dist/site with .cache/venv-site, and follows every link of it
    scripts/site.py preprocess      for mdBook: links to files outside of docs/ lead to copies of these in the site
"""

import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = ROOT / "dist/site"
# Where copies are, in the site.
SOURCE = "source"
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
FENCE = re.compile(r"\s*(```+)")


def is_elsewhere(target: str) -> bool:
    return bool(urllib.parse.urlsplit(target).scheme)


def links_replaced(text: str, replace) -> str:
    """A page with its links replaced; what is in fenced code stays."""
    fence, lines = None, []
    for line in text.split("\n"):
        found = FENCE.match(line)
        if found and fence is None:
            fence = found[1]
        elif found and found[1].startswith(fence):
            fence = None
        elif fence is None:
            line = LINK.sub(lambda link: replace(link[0]), line)
        lines.append(line)
    return "\n".join(lines)


def outside(page: pathlib.Path, target: str) -> pathlib.Path | None:
    """The file outside of docs/ that a link leads to, from the repository's folder."""
    path = target.split("#")[0]
    if not path or is_elsewhere(target):
        return None
    file = (page.parent / path).resolve()
    if file.is_relative_to(DOCS):
        return None
    if not file.is_file():
        sys.exit(f"site: {page.relative_to(ROOT)}: {target}: the site can show a file only")
    return file.relative_to(ROOT)


def shown_as(file: pathlib.Path) -> str:
    """Where its copy is in the site. A browser shows text, and saves what it does not know."""
    # mdBook takes whatever has `.md` in it for a page of its own.
    return f"{SOURCE}/{str(file).removesuffix('.md')}.txt"


def preprocess() -> None:
    _, book = json.load(sys.stdin)

    def visit(items: list) -> None:
        # Lines between chapters, and titles of parts, are something else.
        chapters = [item["Chapter"] for item in items if isinstance(item, dict) and "Chapter" in item]
        for chapter in chapters:
            path = pathlib.PurePath(chapter["path"])
            up = "../" * (len(path.parts) - 1)

            def replace(target: str) -> str:
                file = outside(DOCS / path, target)
                return up + shown_as(file) if file else target

            chapter["content"] = links_replaced(chapter["content"], replace)
            visit(chapter["sub_items"])

    visit(book["items"])
    json.dump(book, sys.stdout)


class Page(html.parser.HTMLParser):
    """The places of a page, and where its links lead."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.path, self.places, self.links = path, set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes) -> None:
        for name, value in attributes:
            if name == "id":
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def dead_links(pages: dict[pathlib.Path, Page]) -> list[str]:
    dead = []
    for page in pages.values():
        for link in page.links:
            if is_elsewhere(link):
                continue
            path, _, place = link.partition("#")
            file = (page.path.parent / urllib.parse.unquote(path)).resolve() if path else page.path
            # The page for what is not there is shown at any depth: its links begin at the site's top.
            if path.startswith("/"):
                file = SITE / path.lstrip("/")
            if file.is_dir():
                file /= "index.html"
            known = pages.get(file)
            if not file.is_file():
                dead.append(f"{page.path.relative_to(SITE)}: {link}: there is no such file")
            elif place and known and urllib.parse.unquote(place) not in known.places:
                dead.append(f"{page.path.relative_to(SITE)}: {link}: there is no such place")
    return dead


def build() -> None:
    subprocess.run([ROOT / "scripts/setup.sh", "site"], check=True)
    shutil.rmtree(SITE, ignore_errors=True)
    mdbook = ROOT / ".cache/venv-site/bin/mdbook"
    built = subprocess.run([mdbook, "build", ROOT], capture_output=True, text=True)
    # A warning is a link or a tag that is not what was meant.
    if built.returncode or "WARN" in built.stderr:
        sys.exit(f"site: mdbook ended with {built.returncode}\n{built.stderr}")
    for page in DOCS.rglob("*.md"):
        def copy(target: str) -> str:
            file = outside(page, target)
            if file:
                (SITE / shown_as(file)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, SITE / shown_as(file))
            return target

        links_replaced(page.read_text(), copy)
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    dead = dead_links(pages)
    if dead:
        sys.exit("site: links that lead nowhere:\n  " + "\n  ".join(dead))
    links = sum(len(page.links) for page in pages.values())
    print(f"site: dist/site/index.html, {len(pages)} pages, {links} links followed")


if sys.argv[1:] == []:
    build()
elif sys.argv[1] == "preprocess":
    # mdBook asks first which formats this is for: `preprocess supports html`.
    if sys.argv[2:3] != ["supports"]:
        preprocess()
else:
    sys.exit(__doc__)
