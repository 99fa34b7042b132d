#!/usr/bin/env python3
"""Lays out the vendor's headers that tests/abi.rs compares the declarations with.

    headers.py           the oldest and the newest NCCL release named in since.txt
    headers.py VERSION   these NCCL releases
    headers.py --all     every release named in since.txt, and each minor release's cuda.h
    headers.py --facts   every release that pip knows, from OLDEST on; then rewrites since.txt

The headers of one CUDA 12 and one CUDA 13 are always among them. Everything comes from the vendor's Python
wheels, one at a time: pip downloads it into a temporary folder, its headers and the names of its
symbols are taken out, and it is deleted. What is there already is not downloaded again.
The headers go to target/abi-headers, or to $METRALE_ABI_HEADERS. Needs pip, and nm of binutils.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("METRALE_ABI_HEADERS") or HERE.parent.parent / "target" / "abi-headers")
SINCE = HERE / "since.txt"
OLDEST = "2.18.3"

# cuda.h and what cuda_runtime.h includes; the second package of each has its crt/ folder.
CUDA = {
    "cuda-12.1.105": ["nvidia-cuda-runtime-cu12==12.1.105", "nvidia-cuda-nvcc-cu12==12.1.105"],
    "cuda-13.5.37": ["nvidia-cuda-runtime==13.5.37", "nvidia-cuda-crt==13.5.37"],
}
# The first cuda.h of each other minor release.
CUDA_H = """11.7.99 11.8.89 12.0.107 12.2.53 12.3.52 12.4.99 12.5.39 12.6.37 12.8.57 12.9.37
13.0.48 13.1.80 13.2.51 13.3.29 13.4.49""".split()


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def wheel(requirement, folder):
    pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--dest", folder, requirement)
    (path,) = Path(folder).glob("*.whl")
    return zipfile.ZipFile(path)


def lay_out(name, requirements, take):
    """Makes ROOT/name whole or not at all: `take(wheel, folder)` fills it from each wheel."""
    goal = ROOT / name
    if goal.exists():
        return
    print(f"fetching {', '.join(requirements)}", flush=True)
    ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".") as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        for number, requirement in enumerate(requirements):
            with wheel(requirement, Path(temporary) / str(number)) as archive:
                take(archive, made)
        made.rename(goal)


def take_cuda(archive, folder):
    for entry in archive.namelist():
        inside = re.search(r"/include/((?:crt/)?[^/]+\.(?:h|hpp))$", entry)
        if inside:
            target = folder / inside[1]
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(archive.read(entry))


def take_cuda_h(archive, folder):
    (header,) = (n for n in archive.namelist() if n.endswith("/include/cuda.h"))
    (folder / "cuda.h").write_bytes(archive.read(header))


def take_nccl(archive, folder):
    (header,) = (n for n in archive.namelist() if n.endswith("/include/nccl.h"))
    (folder / "nccl.h").write_bytes(archive.read(header))
    (library,) = (n for n in archive.namelist() if n.endswith("/lib/libnccl.so.2"))
    with tempfile.TemporaryDirectory() as temporary:
        path = archive.extract(library, temporary)
        table = subprocess.run(["nm", "-D", "--defined-only", path], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in table.splitlines()}
    names = sorted(n for n in names if re.match(r"p?nccl[A-Z]", n))
    (folder / "symbols.txt").write_text("".join(f"{n}\n" for n in names))


def cuda_h():
    for version in CUDA_H:
        major = int(version.split(".")[0])
        package = "nvidia-cuda-runtime" + (f"-cu{major}" if major < 13 else "")
        lay_out(f"cuda-{version}", [f"{package}=={version}"], take_cuda_h)


def nccl(wheels):
    for flavor, version in wheels:
        lay_out(f"nccl-{version}-{flavor}", [f"nvidia-nccl-{flavor}=={version}"], take_nccl)


def order(version):
    return [int(number) for number in re.findall(r"\d+", version)]


def named_wheels():
    """The (flavor, version) of each wheel named in since.txt, oldest first."""
    return [tuple(line.split()[1:]) for line in SINCE.read_text().splitlines()
            if line.startswith("wheel ")]


def known_wheels():
    """The (flavor, version) of each wheel that pip knows, oldest first."""
    found = []
    for flavor in ("cu12", "cu13"):
        listing = pip("index", "versions", f"nvidia-nccl-{flavor}")
        versions = re.search(r"Available versions: (.*)", listing)[1].split(", ")
        found += [(flavor, v) for v in versions if order(v) >= order(OLDEST)]
    return sorted(found, key=lambda w: (order(w[1]), w[0]))


def items(header):
    """The names that nccl.h brings: functions, types, enumerators, macros, and `type.field`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)
    names = set(re.findall(r"\b(?:nccl|NCCL_)\w+", text))
    # Tags of structs are no names that a program uses.
    names -= {n for n in names if re.search(rf"\bstruct {n}\b", text)}
    names -= {"NCCL_H_", "NCCL_OS_LINUX"}
    for body, kind in re.findall(r"typedef struct \w*\s*{((?:[^{}]|{[^{}]*})*)}\s*(\w+);", text):
        body = re.sub(r"{[^{}]*}", " ", body)
        names |= {f"{kind}.{field}" for field in re.findall(r"(\w+)\s*(?:\[[^]]*\])?\s*;", body)}
    functions = {n for n in names if n.startswith("nccl")
                 and re.search(rf"^[^#\n]*\b{n}\s*\(", text, flags=re.MULTILINE)}
    return names, functions


def facts(wheels):
    """Rewrites since.txt: the first release of each item, from every header laid out."""
    kept = []
    first = {}
    for line in SINCE.read_text().splitlines():
        if line.startswith("given "):
            first[line.split()[2]] = None
        if not line.startswith(("wheel ", "found ")):
            kept.append(line)
    given = set(first)
    held = set()
    for flavor, version in wheels:
        folder = ROOT / f"nccl-{version}-{flavor}"
        names, functions = items((folder / "nccl.h").read_text())
        missing = functions - set((folder / "symbols.txt").read_text().split())
        if missing:
            sys.exit(f"{version} {flavor}: the library lacks {sorted(missing)}")
        if gone := held - names:
            sys.exit(f"{version} {flavor}: an earlier release had {sorted(gone)}")
        if version == OLDEST and given != names:
            sys.exit(f"{SINCE.name}: the given items and the oldest header differ in "
                     f"{sorted(given ^ names)}")
        held = names
        for name in names:
            first.setdefault(name, version)
    kept += [f"wheel {flavor} {version}" for flavor, version in wheels]
    found = sorted((order(v), name, v) for name, v in first.items() if v)
    kept += [f"found {v} {name}" for _, name, v in found]
    SINCE.write_text("\n".join(kept) + "\n")


def main(arguments):
    for name, requirements in CUDA.items():
        lay_out(name, requirements, take_cuda)
    if arguments == ["--facts"]:
        wheels = known_wheels()
        nccl(wheels)
        facts(wheels)
        return
    wheels = named_wheels()
    if arguments == ["--all"]:
        cuda_h()
        nccl(wheels)
    elif arguments:
        nccl(w for w in known_wheels() if w[1] in arguments)
    else:
        nccl([wheels[0], wheels[-1]])


if __name__ == "__main__":
    main(sys.argv[1:])
