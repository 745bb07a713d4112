"""What is in the packages, read without an installation."""

import gzip
import re
import tarfile
import tomllib

from booted import ROOT

from machine import Failure, run

SUMMARY = ROOT / "docs/SUMMARY.md"
LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")
COMPLETIONS = ("bash-completion/completions/forebay", "zsh/vendor-completions/_forebay", "fish/vendor_completions.d/forebay.fish")
# What a reader may follow, and what stands there where that is not installed.
ANY_LINK = re.compile(r"`[^`\n]*`|!?\[((?:`[^`\n]*`|[^\[\]`])*)\]\(([^()\s]+)\)")
IN_THE_SOURCE = re.compile(r" \(in the source: ([^()\s]+)\)")
UNITS = ("forebay@.service", "forebay-server@.service", "forebay-mount@.service")
INTEGRATIONS = ("slurm/burst_buffer.lua", "prometheus/forebay.rules.yml", "grafana/forebay.json")


def check(is_so, what):
    if not is_so:
        raise Failure(f"the package: {what}")


def look(deb, archive, base):
    """The Debian package as dpkg-deb sees it, its files, and the archive with the same."""
    control(deb)
    owners(deb)
    root, kept = base / "content", base / "control"
    run(["dpkg-deb", "-x", deb, root])
    run(["dpkg-deb", "-e", deb, kept])
    sums = (kept / "md5sums").read_text(encoding="utf-8").splitlines()
    run(["md5sum", "--quiet", "--strict", "-c", kept / "md5sums"], cwd=root)
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    check({line.split("  ", 1)[1] for line in sums} == files, "md5sums and the files differ")
    scripts(kept)
    program(root / "usr")
    papers(root / "usr/share/doc/forebay")
    links(root / "usr/share/doc/forebay")
    same(archive, {name.removeprefix("usr/") for name in files})


def control(deb):
    said = run(["dpkg-deb", "-I", deb]).stdout
    for name, form in (("Package", "forebay"), ("Version", r"\S+"), ("Architecture", "amd64"), ("Maintainer", r".+ <\S+@\S+>"),
                       ("Installed-Size", r"[1-9]\d{3,}"), ("Depends", r"libc6 \(>= 2\.\d+\), libgcc-s1"), ("Recommends", "fuse3"),
                       ("Description", "burst buffer: .+")):
        check(re.search(rf"(?m)^ {name}: {form}$", said), f"dpkg-deb -I has no {name}: {form} in\n{said}")


def owners(deb):
    """All is root's, and nobody else writes to it or gets rights by it."""
    for line in run(["dpkg-deb", "-c", deb]).stdout.splitlines():
        mode, owner, *_ = line.split()
        check(owner == "root/root", f"not root's: {line}")
        check(mode[0] == "l" or (mode[5] == mode[8] == "-" and "s" not in mode.lower()), f"too many rights: {line}")


def scripts(kept):
    for name in ("preinst", "postinst", "prerm", "postrm"):
        script = kept / name
        check(script.stat().st_mode & 0o777 == 0o755, f"{name} cannot be run")
        check(not re.search("@[A-Z_]+@", script.read_text(encoding="utf-8")), f"{name} has a word that was not filled in")
        run(["sh", "-n", script])


def program(usr):
    forebay = usr / "bin/forebay"
    check(run([forebay, "--version"]).stdout.startswith("forebay "), "the program does not say its version")
    help_text = run([forebay, "--help"]).stdout
    commands = re.findall(r"(?m)^  ([a-z-]+) ", help_text.split("Commands:")[1].split("Options:")[0])
    check(len(commands) > 15, f"commands: {commands}")
    for command in commands:
        if command != "help":
            page = gzip.decompress((usr / f"share/man/man1/forebay-{command}.1.gz").read_bytes()).decode()
            check(f"forebay-{command}" in page.replace("\\-", "-"), f"the manual page of {command} does not name it")
    helpers = ("mount.forebay", "mount.fuse.forebay", "umount.forebay", "umount.fuse.forebay")
    named = [link for name in helpers for link in (usr / "sbin" / name, usr / f"share/man/man8/{name}.8.gz")]
    for link in (*named, usr / "lib/systemd/system-generators/forebay-generator"):
        check(link.is_symlink() and link.exists(), f"{link.relative_to(usr)} leads nowhere")
    for name in COMPLETIONS:
        check("stage-out" in (usr / "share" / name).read_text(encoding="utf-8"), f"{name} knows no stage-out")
    for name in UNITS:
        check("ExecStart=/usr/bin/forebay " in (usr / "lib/systemd/system" / name).read_text(encoding="utf-8"), f"{name} starts nothing")
    for name in INTEGRATIONS:
        check((usr / "share/forebay" / name).stat().st_size, f"{name} is empty")
    for example in (usr / "share/doc/forebay/examples").iterdir():
        check(tomllib.loads(example.read_text(encoding="utf-8")), f"{example.name} is empty")


def papers(doc):
    """Each page that SUMMARY.md names is there, and what it links to in docs/, too. Decisions stay with the source."""
    pages = [page for page in LINK.findall(SUMMARY.read_text(encoding="utf-8")) if not page.startswith("decisions/")]
    for page in ("tutorial.md", "faq.md", "recipes/index.md", "recipes/pytorch.md", "operations.md"):
        check(page in pages, f"{page} is not in docs/SUMMARY.md")
    for page in pages:
        packed = doc / f"{page}.gz"
        check(packed.exists(), f"{page} is in docs/SUMMARY.md, and not in the package")
        text = gzip.decompress(packed.read_bytes()).decode()
        check(words(text) == words((ROOT / "docs" / page).read_text(encoding="utf-8")), f"{page} is another text than docs/{page}")
        for link in LINK.findall(text):
            leads = (ROOT / "docs" / page).parent.joinpath(link).resolve()
            if leads.is_relative_to(ROOT / "docs") and "decisions" not in leads.parts:
                check((packed.parent / f"{link}.gz").resolve().is_file(), f"{page} links to {link}, which is not in the package")


def words(page):
    """A page without the targets of its links, which lead elsewhere in the package."""
    return IN_THE_SOURCE.sub("", ANY_LINK.sub(lambda link: link[0] if link[1] is None else link[1], page))


def links(doc):
    """No link leads to a file that is not installed."""
    followed = 0
    for packed in sorted(doc.rglob("*.md.gz")):
        text = re.sub(r"(?ms)^( *```+)[^\n]*\n.*?^\1 *$", "", gzip.decompress(packed.read_bytes()).decode())
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", re.sub(r"`[^`\n]*`", "", text)):
            if not re.match(r"[a-z]+:", target):
                leads = (packed.parent / target).resolve()
                there = leads.is_relative_to(doc.parents[1]) and (leads.exists() or leads.with_name(f"{leads.name}.gz").exists())
                check(there, f"{packed.relative_to(doc)} links to {target}, which is not installed")
                followed += 1
        for file in IN_THE_SOURCE.findall(text):
            check((ROOT / file).exists(), f"{packed.relative_to(doc)} names {file} of the source, which is not there")
    check(followed > 100, f"links of the pages: {followed}")


def same(archive, files):
    with tarfile.open(archive) as tar:
        names = {member.name.split("/", 1)[1] for member in tar if member.isfile()}
    # dpkg alone asks for it.
    only = {"share/doc/forebay/copyright"}
    check(names - files == set() and files - names <= only, f"the archive and the package differ: {sorted(names ^ files)}")
