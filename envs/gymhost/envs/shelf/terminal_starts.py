"""The starts of chores: what there is to begin with, and what is to be there at the end, drawn for each kind."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gymhost.envs.shelf.terminal_checks import Holds, Modes, Pipe, Runs, Script, Tree, Unpacks, Want, digest

__all__ = [
    "SUFFIXES",
    "WORDS",
    "Start",
    "Values",
    "columns",
    "count",
    "delete",
    "largest",
    "listen",
    "merge",
    "move_large",
    "names",
    "pack",
    "permissions",
    "rename",
    "replace",
    "stop",
    "total",
    "totals",
    "unpack",
]

Values = Mapping[str, str]
Files = dict[str, str]

WORDS = (
    *(
        "amber",
        "basil",
        "cedar",
        "daisy",
        "ember",
        "fjord",
        "grove",
        "hazel",
        "inlet",
        "jetty",
        "karst",
        "lemon",
        "maple",
    ),
    *("nectar", "olive", "pearl", "quartz", "river", "sable", "thorn", "umber", "velvet", "willow", "yarrow", "zinnia"),
)
SUFFIXES = (".log", ".txt", ".dat", ".tmp", ".bak", ".csv")


@dataclass(frozen=True, slots=True)
class Start:
    """What a chore begins and ends with.

    Attributes:
        files: Files by their paths in the working folder.
        wants: What is to be there at the end.
        modes: Permission bits of files that have others than usual.
        binary: Files that are no text.
        command: A command that is started for each of the `Runs`, in the background, with its name as argument.
        names: Their names.
    """

    files: Files
    wants: Sequence[Want]
    modes: Mapping[str, int] = field(default_factory=dict[str, int])
    binary: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    command: str = ""
    names: Sequence[str] = ()


def names(draw: Random, *wanted: str) -> dict[str, str]:
    """Draws different words, by the names that are wanted."""
    return dict(zip(wanted, draw.sample(WORDS, len(wanted)), strict=True))


def _text(draw: Random, lines: int) -> str:
    return "".join(f"{' '.join(draw.choices(WORDS, k=4))} {draw.randint(0, 9999)}\n" for _ in range(lines))


def _scatter(draw: Random, folder: str, number: int, suffixes: Sequence[str]) -> list[str]:
    """Returns paths of files with different names, in a folder and those in it."""
    names = draw.sample([f"{one}-{other}" for one in WORDS for other in WORDS if one < other], number)
    folders = [folder, *(f"{folder}/{name}" for name in draw.sample(WORDS, 3))]
    folders.append(f"{folders[-1]}/{draw.choice(WORDS)} {draw.randint(1, 9)}")
    suffix = [*suffixes, *(draw.choice(suffixes) for _ in range(number))]
    return [f"{draw.choice(folders)}/{name}{end}" for name, end in zip(names, suffix, strict=False)]


def _below(files: Mapping[str, str | bytes], folder: str) -> dict[str, str]:
    """Returns the digests of the files in a folder by their paths in it."""
    return {path.removeprefix(f"{folder}/"): digest(of) for path, of in files.items() if path.startswith(f"{folder}/")}


def move_large(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    limit, source = int(values["size"]), values["source"]
    paths = _scatter(draw, source, 14, SUFFIXES)
    # One of exactly so many bytes, which is not more.
    sizes = [limit, limit + 1, 4 * limit, *(draw.randint(1, 2 * limit) for _ in paths[3:])]
    files = {path: f"{path}\n".ljust(size, "x")[:size] for path, size in zip(paths, sizes, strict=True)}
    large = {path: text for path, text in files.items() if len(text) > limit}
    moved = {path.rpartition("/")[2]: digest(text) for path, text in large.items()}
    left = _below({path: text for path, text in files.items() if path not in large}, source)
    return Start(files, [Tree(values["target"], moved), Tree(source, left)])


def delete(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    folder, suffix = values["folder"], values["suffix"]
    others = [other for other in SUFFIXES if other != suffix]
    paths = _scatter(draw, folder, 16, [suffix, suffix, f"{suffix}x", *others])
    files = {path: _text(draw, 2) for path in paths}
    return Start(files, [Tree(folder, _below({p: t for p, t in files.items() if not p.endswith(suffix)}, folder))])


def permissions(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    folder = values["folder"]
    paths = _scatter(draw, folder, 10, (".sh", ".sh", ".cfg", ".txt"))
    files = {path: f"echo {number}\n" for number, path in enumerate(paths)}
    wanted = {
        path.removeprefix(f"{folder}/"): int(values["mode" if path.endswith(".sh") else "rest"], 8) for path in paths
    }
    begun = {path: draw.choice([0o600, 0o644, 0o755, 0o666]) for path in paths}
    return Start(files, [Modes(folder, wanted), Tree(folder, _below(files, folder))], begun)


def total(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    places = draw.sample(WORDS, 4)
    places[0] = values["place"]
    rows = [(draw.choice(places), draw.choice(WORDS), draw.randint(1, 900)) for _ in range(draw.randint(80, 160))]
    rows += [(values["place"], values["place"], 17)]
    text = "place,thing,amount\n" + "".join(f"{place},{thing},{amount}\n" for place, thing, amount in rows)
    amounts = sum(amount for place, _, amount in rows if place == values["place"])
    return Start({values["file"]: text}, [Holds(values["out"], str(amounts)), Holds(values["file"], text)])


def count(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    statuses = [values["status"], "200", "304", "500", "418"]
    lines, count = list[str](), 0
    for number in range(draw.randint(150, 300)):
        path = f"/{draw.choice([values['path'], *WORDS[:3]])}/{draw.choice([values['path'], *WORDS])}"
        # The status also comes as a number of bytes, which is not what is asked for.
        status, size = draw.choice(statuses), draw.choice([values["status"], str(draw.randint(5, 999))])
        count += status == values["status"] and path.startswith(f"/{values['path']}/")
        lines.append(f"10.0.{number % 7}.{number % 31} GET {path} {status} {size}\n")
    return Start({"access.log": "".join(lines)}, [Holds(values["out"], str(count))])


def rename(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    folder = values["folder"]
    names = draw.sample(WORDS, 12)
    files = {f"{folder}/{name}{'.jpeg' if number < 8 else '.png'}": name for number, name in enumerate(names)}
    files[f"{folder}/{names[0]}.jpeg.old"] = "old"
    wanted = {
        f"{folder}/{values['prefix']}-{path.removeprefix(f'{folder}/').removesuffix('.jpeg')}.jpg"
        if path.endswith(".jpeg")
        else path: text
        for path, text in files.items()
    }
    return Start(files, [Tree(folder, _below(wanted, folder))])


def pack(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    folder = values["folder"]
    files = {path: _text(draw, 5) for path in _scatter(draw, folder, 9, SUFFIXES)}
    packed = {path: digest(text) for path, text in files.items()}
    return Start(files, [Unpacks(values["archive"], packed), Tree(folder, _below(files, folder))])


def unpack(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    others = [suffix for suffix in SUFFIXES if suffix != values["suffix"]]
    files = {
        path.removeprefix("x/"): _text(draw, 4)
        for path in _scatter(draw, "x", 14, [values["suffix"], values["suffix"], *others])
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    wanted = {path: digest(text) for path, text in files.items() if path.endswith(values["suffix"])}
    archive = gzip.compress(packed.getvalue(), mtime=0)
    return Start({}, [Tree(values["target"], wanted)], binary={values["archive"]: archive})


def merge(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    lines = [f"{draw.choice(WORDS)}{draw.choice(['', ' ', '-'])}{draw.randint(0, 30)}" for _ in range(120)]
    lines += [word.upper() for word in draw.sample(WORDS, 5)]
    draw.shuffle(lines)
    files = {
        values[name]: "".join(f"{line}\n" for line in part) for name, part in (("a", lines[:70]), ("b", lines[55:]))
    }
    return Start(files, [Holds(values["out"], "".join(f"{line}\n" for line in sorted(set(lines))))])


def replace(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    folder, old, new = values["folder"], values["old"], values["new"]
    files = {
        path: "".join(
            f"{draw.choice(WORDS)} = {draw.choice([old, old.replace('.', '-'), 'other'])}\n" for _ in range(8)
        )
        for path in _scatter(draw, folder, 12, (".conf", ".conf", ".conf", ".conf.old", ".txt"))
    }
    done = {path: text.replace(old, new) if path.endswith(".conf") else text for path, text in files.items()}
    return Start(files, [Tree(folder, _below(done, folder))])


def totals(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""

    def table() -> tuple[str, str]:
        rows = [(draw.choice(WORDS[:6]), draw.randint(-20, 99)) for _ in range(draw.randint(5, 40))]
        sums = {name: sum(number for of, number in rows if of == name) for name, _ in rows}
        ranked = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[: int(values["top"])]
        return "".join(f"{name} {number}\n" for name, number in rows), "".join(f"{n} {s}\n" for n, s in ranked)

    tables = [table() for _ in range(4)]
    runs = [({f"in {number}.txt": given}, [f"in {number}.txt"], out) for number, (given, out) in enumerate(tables[1:])]
    return Start({"example.txt": tables[0][0]}, [Script(values["script"], runs)])


def columns(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""

    def table() -> tuple[str, str]:
        rows = [[draw.choice(WORDS[:5]) for _ in range(4)] for _ in range(draw.randint(5, 30))]
        number = int(values["column"]) - 1
        kept = sorted({row[number] for row in rows if row[0] != values["word"]})
        return "".join(f"{';'.join(row)}\n" for row in rows), "".join(f"{word}\n" for word in kept)

    tables = [table() for _ in range(4)]
    runs = [({f"{number}.in": given}, [f"{number}.in"], wanted) for number, (given, wanted) in enumerate(tables[1:])]
    return Start({"example.in": tables[0][0]}, [Script(values["script"], runs)])


def largest(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    folder = values["folder"]
    paths = _scatter(draw, folder, 15, SUFFIXES)
    sizes = draw.sample(range(10, 3000), len(paths))
    files = {path: "x" * size for path, size in zip(paths, sizes, strict=True)}
    ranked = sorted(paths, key=lambda path: -len(files[path]))[: int(values["number"])]
    wanted = "".join(f"{path.rpartition('/')[2]}\n" for path in ranked)
    return Start(files, [Holds(values["out"], wanted), Tree(folder, _below(files, folder))])


def stop(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    names = draw.sample(WORDS, 5)
    ports = draw.sample([port for port in range(2000, 9000) if str(port) != values["port"]], 5)
    ended = draw.randrange(5)
    ports[ended] = int(values["port"])
    files = {
        f"jobs/{name}.conf": f"name={draw.choice(WORDS)}\nport={port}\nold_port={draw.choice(ports)}\n"
        for name, port in zip(names, ports, strict=True)
    }
    files["worker.sh"] = '# Serves the job of a file.\n. "$1"\nwhile :; do sleep 5; done\n'
    confs = [f"jobs/{name}.conf" for name in names]
    wants: list[Want] = [Runs(confs[ended]), Tree("jobs", _below(files, "jobs"))]
    return Start(files, wants, command="bash worker.sh", names=confs)


def listen(draw: Random, values: Values) -> Start:
    """Makes the start of a chore of this kind."""
    lines = [" ".join(draw.choices(WORDS, k=3)) + f" {draw.randint(100, 999)}" for _ in range(3)]
    return Start({}, [Pipe(values["fifo"], values["out"], lines)])
