#!/usr/bin/env python3
"""Makes dist/forebay_VERSION_amd64.deb and dist/forebay-VERSION-x86_64-linux.tar.gz: the binary with its manual pages, completions, units,
examples, papers and licences. The archive is the same tree for /usr/local.

The version is that of Cargo.toml. Where HEAD is not tagged `v<version>` it is one before that, with the commit's date and name.
MAINTAINER='Name <address>' in the environment is who answers for the package; a release needs it.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import release
from machine import Failure, ROOT, run

PACKAGING = ROOT / "packaging"
# Decisions stay with the source; the list of pages is the site's.
PAPERS = ("README.md", "CHANGELOG.md", "docs/status.schema.json", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))
                                         if page.name != "SUMMARY.md" and "decisions" not in page.parts))
INTEGRATIONS = ("slurm", "prometheus", "grafana")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
# Nobody is asked there: for packages that stay with who made them.
NOBODY = "The Forebay developers <forebay@localhost>"
MAINTAINER = re.compile(r"[^<>\n]+ <[^<>@\s]+@[^<>@\s]+>")
HELPERS = ("mount.forebay", "mount.fuse.forebay", "umount.forebay", "umount.fuse.forebay")
# Not one in code: `[text](target)`, a picture with `!` before it.
LINK = re.compile(r"`[^`\n]*`|(?P<picture>!?)\[(?P<text>(?:`[^`\n]*`|[^\[\]`])*)\]\((?P<target>[^()\s]+)\)")
FENCED = re.compile(r"(?ms)^( *```+)[^\n]*\n.*?^\1 *$")
GLIBC = re.compile(rb"GLIBC_2\.(\d+)\0")


def deb_version(version):
    """A commit that is no release sorts before the release that it leads to, and after older commits."""
    tagged = f"v{version}" in release.git("tag", "--points-at", "HEAD").split()
    changed = "+changed" if release.git("status", "--porcelain") else ""
    if tagged and not changed:
        release.check_changelog(version)
        return version
    when, commit = release.git("log", "-1", "--format=%cd %h", "--date=format:%Y%m%d%H%M", "--abbrev=10").split()
    return f"{version}~git{when}.{commit}{changed}"


def maintainer_of(version, given):
    """Who answers for this version. A release goes to strangers: it has an address that somebody reads."""
    if given:
        if not MAINTAINER.fullmatch(given):
            raise Failure(f"MAINTAINER is '{given}', and not as 'Name <name@example.org>'")
        return given
    if "~git" not in version:
        raise Failure(f"{version} is a release: say who answers for it, MAINTAINER='Name <name@example.org>'")
    return NOBODY


def put(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write(target, text, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    target.chmod(mode)


def squeeze(path):
    """FILE becomes FILE.gz, the same each time."""
    packed = path.with_name(path.name + ".gz")
    with packed.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
        zipped.write(path.read_bytes())
    packed.chmod(0o644)
    path.unlink()


def papers(usr, binary):
    """What the program writes about itself."""
    made = usr / "made"
    run([binary, "packaging", "papers", made, release.git("log", "-1", "--format=%cs")])
    for page in sorted((made / "man1").iterdir()):
        put(page, usr / "share/man/man1" / page.name)
        squeeze(usr / "share/man/man1" / page.name)
    (usr / "share/man/man8").mkdir()
    for helper in HELPERS:
        (usr / f"share/man/man8/{helper}.8.gz").symlink_to("../man1/forebay-mount.1.gz")
    for made_as, place in (("bash/forebay", "bash-completion/completions/forebay"), ("zsh/_forebay", "zsh/vendor-completions/_forebay"),
                           ("fish/forebay.fish", "fish/vendor_completions.d/forebay.fish")):
        put(made / "completions" / made_as, usr / "share" / place)
    shutil.rmtree(made)


def installed_as(paper):
    """Where a paper is, from the folder of the papers."""
    return Path(paper.removeprefix("docs/"))


def links_mended(paper):
    """The text of a paper, with links as the installed files lie. What is not installed is named as a file of the source."""
    here, at = ROOT / paper, installed_as(paper)

    def mended(link):
        target = link["target"]
        if not target or target.startswith("#") or "://" in target or target.startswith("mailto:"):
            return link[0]
        name, _, place = target.partition("#")
        file = os.path.relpath(here.parent / name, ROOT)
        if not (ROOT / file).exists():
            raise Failure(f"{paper} links to {target}, which is not there")
        if file in PAPERS:
            leads = installed_as(file)
        elif file.split("/")[0] == "integrations" and file.split("/")[1] in INTEGRATIONS:
            leads = Path("../../forebay", *Path(file).parts[1:])
        else:
            return f"{link['text']} (in the source: {file})"
        return f"{link['picture']}[{link['text']}]({os.path.relpath(leads, at.parent)}{place and '#' + place})"

    text, parts, end = here.read_text(encoding="utf-8"), [], 0
    for fenced in FENCED.finditer(text):
        parts += [LINK.sub(mended, text[end:fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*parts, LINK.sub(mended, text[end:])])


def fill(usr, binary, version, third_party):
    """All that is below /usr."""
    (usr / "bin").mkdir(parents=True)
    run(["strip", "--strip-all", "-o", usr / "bin/forebay", binary])
    release.check_binary(usr / "bin/forebay", version)
    (usr / "bin/forebay").chmod(0o755)
    (usr / "sbin").mkdir()
    for helper in HELPERS:
        (usr / "sbin" / helper).symlink_to("../bin/forebay")
    # It gives an unmount at a reboot its time.
    (usr / "lib/systemd/system-generators").mkdir(parents=True)
    (usr / "lib/systemd/system-generators/forebay-generator").symlink_to("../../../bin/forebay")
    papers(usr, binary)
    for unit in sorted((ROOT / "integrations/systemd").glob("*.service")):
        put(unit, usr / "lib/systemd/system" / unit.name)
    put(PACKAGING / "forebay.tmpfiles", usr / "lib/tmpfiles.d/forebay.conf")
    doc = usr / "share/doc/forebay"
    for paper in PAPERS:
        text = links_mended(paper) if paper.endswith(".md") else (ROOT / paper).read_text(encoding="utf-8")
        write(doc / installed_as(paper), text)
        squeeze(doc / installed_as(paper))
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        put(ROOT / licence, doc / licence)
    write(doc / "LICENSES-THIRD-PARTY.txt", third_party)
    squeeze(doc / "LICENSES-THIRD-PARTY.txt")
    for example in sorted((PACKAGING / "examples").iterdir()):
        put(example, doc / "examples" / example.name)
    for name in INTEGRATIONS:
        for file in sorted((ROOT / "integrations" / name).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                mode = 0o755 if os.access(file, os.X_OK) else 0o644
                put(file, usr / "share/forebay" / name / file.relative_to(ROOT / "integrations" / name), mode)
    for folder in (usr, *(path for path in usr.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def copyright_text():
    return "\n".join((
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: Forebay", "",
        "Files: *", "Copyright: The Forebay developers", "License: Apache-2.0 or MIT", "",
        "License: Apache-2.0 or MIT",
        " The texts are LICENSE-APACHE and LICENSE-MIT in this folder. What else is in the binary, and its licences, is in",
        " LICENSES-THIRD-PARTY.txt.gz.", ""))


def control_text(usr, version, binary, maintainer):
    oldest = max(int(minor) for minor in GLIBC.findall(binary.read_bytes()))
    size_kib = sum(path.lstat().st_size for path in usr.rglob("*")) // 1024
    return f"""Package: forebay
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {size_kib}
Depends: libc6 (>= 2.{oldest}), libgcc-s1
Recommends: fuse3
Section: admin
Priority: optional
Description: burst buffer: a fast file system in front of a slow one
 Forebay mounts memory and flash in front of a parallel file system and shows
 the same tree. It takes bursts of checkpoints at the speed of the fast tiers,
 and drains them to the slow file system by itself, whole and verified.
"""


def pack_deb(dist, work, version, binary, maintainer, fast):
    root = work / "deb"
    usr = root / "usr"
    write(usr / "share/doc/forebay/copyright", copyright_text())
    control = root / "DEBIAN"
    write(control / "control", control_text(usr, version, usr / "bin/forebay", maintainer))
    on_disk = run([binary, "packaging", "on-disk"]).stdout.strip()
    for script in SCRIPTS:
        text = (PACKAGING / "debian" / script).read_text(encoding="utf-8")
        write(control / script, text.replace("@ON_DISK@", on_disk), 0o755)
    files = sorted(path for path in usr.rglob("*") if path.is_file() and not path.is_symlink())
    write(control / "md5sums", "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files))
    (root / "etc/forebay").mkdir(parents=True)
    for folder in (root, root / "etc", root / "etc/forebay", control):
        folder.chmod(0o755)
    package = dist / f"forebay_{version}_amd64.deb"
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or release.git("log", "-1", "--format=%ct")
    packing = ["-Zgzip", "-z1"] if fast else ["-Zxz"]
    run(["dpkg-deb", "--root-owner-group", *packing, "--build", root, package], env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    return package


def pack_tar(dist, work, version, fast):
    """The same below /usr/local."""
    top = work / f"forebay-{version}-x86_64-linux"
    shutil.copytree(work / "deb/usr", top, symlinks=True)
    for unit in (top / "lib/systemd/system").iterdir():
        write(unit, unit.read_text(encoding="utf-8").replace("/usr/bin/", "/usr/local/bin/").replace("/usr/share/", "/usr/local/share/"))
    archive = dist / f"{top.name}.tar.gz"
    with (archive.open("wb") as file, gzip.GzipFile("", "wb", 1 if fast else 9, fileobj=file, mtime=0) as zipped,
          tarfile.open(fileobj=zipped, mode="w") as tar):
        tar.add(top, top.name, filter=release.tidy)
    return archive


def make(dist, binary, version=None, fast=False):
    """Both packages; `version` stands for the one that the commit says. `fast` is for a test: larger, in a tenth of the time."""
    cargo = release.metadata()
    own, _ = release.version_of(cargo)
    version = version or deb_version(own)
    maintainer = maintainer_of(version, os.environ.get("MAINTAINER"))
    binary = binary or release.build(own)
    third_party, _ = release.licences([package for package in release.contained(cargo) if not release.is_ours(package)])
    work = dist / "work"
    if work.exists():
        shutil.rmtree(work)
    try:
        fill(work / "deb/usr", binary, own, third_party)
        archive = pack_tar(dist, work, version, fast)
        return pack_deb(dist, work, version, binary, maintainer, fast), archive
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=lambda path: Path(path).resolve(), help="pack this one instead of building it")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the packages (dist)")
    parser.add_argument("--version", help="version of the packages")
    parser.add_argument("--fast", action="store_true", help="compress little, for a test")
    args = parser.parse_args()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        for made in make(args.out.resolve(), args.binary, args.version, args.fast):
            print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    except (Failure, OSError) as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"package: {' '.join(error.cmd)}: exit {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
