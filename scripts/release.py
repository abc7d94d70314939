"""A release: scripts/release VERSION | build

`VERSION`, as 7.8.9, sets the version wherever it stands, and gives the entries under Unreleased in CHANGELOG.md their
heading; look at the difference, run .ci/run, commit. `build` takes the commit, which must be clean, makes the source
distribution and the pure wheel from it twice and compares them, byte by byte, checks their metadata, installs the wheel
into a fresh environment, has it serve a sample model, and lists what was installed with it, versions and licences, as
an SBOM (CycloneDX); it prints how to tag. The wheel contains no code of other projects.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Files with the version, and the text around it.
PLACES = (
    ("shoal/version.py", '__version__ = "{}"'),
    ("deploy/helm/shoal/Chart.yaml", "\nversion: {}\n"),
    ("deploy/helm/shoal/Chart.yaml", '\nappVersion: "{}"\n'),
)
#: The chart with that version as `helm` renders it (tests/deploy/test_helm.py).
RENDERED = "tests/deploy/rendered/*.yaml"
RENDERED_PLACES = ('app.kubernetes.io/version: "{}"', "helm.sh/chart: shoal-{}")
#: Packages of an environment that only install others.
_INSTALLERS = frozenset({"pip", "setuptools", "wheel"})
#: Prints the field License of all packages of an environment.
_LICENCES = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({each.name: each.metadata.get('License') for each in m.distributions()}))"
)
UNRELEASED = "## [Unreleased]\n"
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:(?:a|b|rc)[0-9]+)?")
_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def current() -> str:
    """The version of the checkout."""
    found = re.search(r'"([^"]+)"', (ROOT / "shoal" / "version.py").read_text().split("__version__")[1])
    assert found is not None
    return found[1]


def replaced(text: str, place: str, old: str, new: str) -> str:
    """A file's text with the version in one kind of place changed. Raises ValueError if there is no such place."""
    if place.format(old) not in text:
        raise ValueError(f"{place.format(old).strip()} does not stand there")
    return text.replace(place.format(old), place.format(new))


def with_release(changelog: str, version: str, day: str) -> str:
    """The change log with the unreleased changes under a version's heading. Raises ValueError if there are none, or the
    heading is there already."""
    before, found, after = changelog.partition(UNRELEASED)
    if not found or f"## [{version}]" in changelog:
        raise ValueError(f"CHANGELOG.md has no 'Unreleased', or {version} already")
    if not re.search(r"^- ", after.partition("\n## [")[0], re.MULTILINE):
        raise ValueError("CHANGELOG.md has nothing under 'Unreleased'")
    return f"{before}{UNRELEASED}\n## [{version}] - {day}\n{after}"


def notes(changelog: str, version: str) -> str:
    """The change log's section about a version. Raises ValueError if there is none."""
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md does not say what changed in {version}: scripts/release {version}, first")
    return found[1].strip()


def set_version(version: str) -> None:
    """Write the version and the change log's heading."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"a version is 7.8.9 or 7.8.9rc1, not '{version}'")
    old, changelog = current(), ROOT / "CHANGELOG.md"
    log = with_release(changelog.read_text(), version, date.today().isoformat())
    texts: dict[Path, str] = {}
    places = [(ROOT / name, place) for name, place in PLACES]
    places += [(path, place) for path in sorted(ROOT.glob(RENDERED)) for place in RENDERED_PLACES]
    for path, place in places:
        texts[path] = replaced(texts.get(path) or path.read_text(), place, old, version)
    for path, text in {**texts, changelog: log}.items():
        path.write_text(text)
    print(f"{old} → {version} in {len(texts)} files, and CHANGELOG.md. Next: git diff, .ci/run, git commit -a")


def run(*command: object, cwd: Path = ROOT, **variables: str) -> str:
    """The output of a command. Raises ValueError with its last lines if it fails."""
    words, environment = [str(word) for word in command], {**os.environ, **variables}
    done = subprocess.run(words, cwd=cwd, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(
            f"{' '.join(words[:4])} … failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        )
    return done.stdout


def made(folder: Path, python: Path) -> Path:
    """Build the commit's distributions in a copy of it that has nothing else; returns their folder."""
    copy, dist = folder / "shoal", folder / "dist"
    copy.mkdir(parents=True)
    dist.mkdir()
    archive = subprocess.Popen(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", copy], stdin=archive.stdout, check=True)
    if archive.wait():
        raise ValueError("git archive failed")
    seconds = run("git", "log", "-1", "--format=%ct").strip()
    for kind in ("build_sdist", "build_wheel"):
        run(python, "-c", _BUILD, kind, dist, cwd=copy, SOURCE_DATE_EPOCH=seconds, SHOAL_COMPILED="0")
    for path in dist.glob("*.tar.gz"):
        settle(path, int(seconds))
    return dist


def settle(path: Path, seconds: int) -> None:
    """Rewrite a source distribution with one time for all files and no owner: setuptools writes the time and the owner
    of the build."""
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            content = old.extractfile(member) if member.isreg() else None
            member.mtime, member.pax_headers = seconds, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, content)
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as whole:
        whole.write(packed.getvalue())


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def write_bom(program: Path, python: Path, path: Path) -> int:
    """Write the SBOM of an interpreter's environment, without the time and without _INSTALLERS; returns the number of
    its packages. Raises ValueError if Shoal is not among them."""
    command = (program, "environment", "--output-reproducible", f"--pyproject={ROOT / 'pyproject.toml'}")
    run(*command, "-o", path, python)
    bom = json.loads(path.read_text())
    bom["components"] = [each for each in bom["components"] if each["name"] not in _INSTALLERS]
    gone = tuple(f"{name}==" for name in _INSTALLERS)
    bom["dependencies"] = [each for each in bom["dependencies"] if not each["ref"].startswith(gone)]
    for each in bom["dependencies"]:
        if "dependsOn" in each:
            each["dependsOn"] = [ref for ref in each["dependsOn"] if not ref.startswith(gone)]
    names = {each["name"] for each in (bom["metadata"]["component"], *bom["components"])}
    if not {"shoal", "flask", "numpy"} <= {name.lower() for name in names}:
        raise ValueError(f"the SBOM lists {len(names)} packages, and not Shoal with what it needs")
    # cyclonedx-py leaves out what a package says in words, in the field that metadata had before licences had names.
    words = json.loads(run(python, "-c", _LICENCES))
    for each in bom["components"]:
        if not each.get("licenses") and words.get(each["name"]):
            each["licenses"] = [{"license": {"name": words[each["name"]]}}]
    if bare := [each["name"] for each in bom["components"] if not each.get("licenses")]:
        raise ValueError(f"the SBOM has no licence of {', '.join(bare)}")
    path.write_text(json.dumps(bom, indent=2) + "\n")
    return len(names)


def build() -> None:
    """Build, check and try the distributions of the commit."""
    if run("git", "status", "--porcelain", "--untracked-files=no").strip():
        raise ValueError("the checkout has changes that are not committed")
    version = current()
    said = notes((ROOT / "CHANGELOG.md").read_text(), version)
    with tempfile.TemporaryDirectory(prefix="shoal-release-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "setuptools>=77", "twine", "cyclonedx-bom>=7")
        dists = [made(folder / turn, python) for turn in ("one", "two")]
        first, second = map(digests, dists)
        if first != second:
            raise ValueError(f"two builds of one commit differ: {first} and {second}")
        files = sorted(dists[0].iterdir())
        print(run(python, "-m", "twine", "check", "--strict", *files))
        wheel = next(path for path in files if path.suffix == ".whl")
        with zipfile.ZipFile(wheel) as opened:
            print(f"{wheel.name}: {len(opened.namelist())} files, {wheel.stat().st_size / 1e6:.1f} MB")
        run(sys.executable, "-m", "venv", folder / "fresh")
        fresh = folder / "fresh" / "bin" / "python"
        run(fresh, *pip[1:], wheel)
        run(fresh, ROOT / "scripts" / "smoke.py", "pure Python", cwd=folder)
        target = ROOT / "dist"
        target.mkdir(exist_ok=True)
        bom = target / f"shoal-{version}.cdx.json"
        listed = write_bom(folder / "venv" / "bin" / "cyclonedx-py", fresh, bom)
        print(f"{bom.relative_to(ROOT)}: {listed} packages")
        for path in files:
            (target / path.name).write_bytes(path.read_bytes())
            print(f"{first[path.name]}  dist/{path.name}")
        (target / f"shoal-{version}.md").write_text(f"{said}\n")
    print(f"It serves. Compiled wheels: scripts/wheels. Then: git tag -a v{version} -F dist/shoal-{version}.md")


def main(arguments: list[str]) -> None:
    """Set the version, or build, as the argument says. Raises SystemExit with the reason for a failure."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise SystemExit(__doc__)
    try:
        build() if arguments == ["build"] else set_version(arguments[0])
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"scripts/release: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
