"""Chores for a shell, made by the dozen: what is asked, what there is to begin with, and what is to be there at the end.

A kind of chore has names and numbers in its text, between backquotes, that differ from task to task.
"""

import gzip
import io
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gymhost.envs.shelf.terminal_checks import Holds, Modes, Pipe, Runs, Script, Tree, Unpacks, Want, digest

__all__ = ["KINDS", "Chore", "Kind", "chore", "solve"]

Values = Mapping[str, str]
Files = dict[str, str]

WORDS = (
    "amber basil cedar daisy ember fjord grove hazel inlet jetty karst lemon maple nectar olive pearl quartz river "
    "sable thorn umber velvet willow yarrow zinnia"
).split()
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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of chore.

    Attributes:
        name: What it is called.
        text: What is asked; `{name}` stands for what differs.
        draw: Draws what differs.
        begin: Makes the start for it.
        solution: Commands that do it, with `@name@` for what differs.
    """

    name: str
    text: str
    draw: Callable[[Random], dict[str, str]]
    begin: Callable[[Random, Values], Start]
    solution: str

    def ask(self, values: Values) -> str:
        """Returns what is asked."""
        return " ".join(self.text.split()).format(**{name: f"`{value}`" for name, value in values.items()})

    def do(self, values: Values) -> str:
        """Returns the commands."""
        return re.sub(r"@(\w+)@", lambda found: values[found[1]], self.solution.strip())

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds what is asked by a chore of this kind, and what differs in it."""
        text, seen = re.escape(" ".join(self.text.split())), set[str]()

        def place(found: re.Match[str]) -> str:
            name = found[1]
            known, _ = name in seen, seen.add(name)
            return f"`(?P={name})`" if known else f"`(?P<{name}>[^`]+)`"

        return re.compile(re.sub(r"\\\{(\w+)\\\}", place, text))


@dataclass(frozen=True, slots=True)
class Chore:
    """A chore: its kind, what is asked, and its start."""

    kind: Kind
    text: str
    start: Start


def chore(seed: str) -> Chore:
    """Returns the chore of a seed, the same one each time."""
    draw = Random(f"chore {seed}")
    kind = draw.choice(KINDS)
    values = kind.draw(draw)
    return Chore(kind, kind.ask(values), kind.begin(draw, values))


def solve(text: str) -> str | None:
    """Returns commands that do what a text asks, or None."""
    for kind in KINDS:
        found = kind.pattern.search(text)
        if found is not None:
            return kind.do(found.groupdict())
    return None


def _names(draw: Random, *names: str) -> dict[str, str]:
    return dict(zip(names, draw.sample(WORDS, len(names)), strict=True))


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


def _move_large(draw: Random, values: Values) -> Start:
    limit, source = int(values["size"]), values["source"]
    paths = _scatter(draw, source, 14, SUFFIXES)
    # One of exactly so many bytes, which is not more.
    sizes = [limit, limit + 1, 4 * limit, *(draw.randint(1, 2 * limit) for _ in paths[3:])]
    files = {path: f"{path}\n".ljust(size, "x")[:size] for path, size in zip(paths, sizes, strict=True)}
    large = {path: text for path, text in files.items() if len(text) > limit}
    moved = {path.rpartition("/")[2]: digest(text) for path, text in large.items()}
    left = _below({path: text for path, text in files.items() if path not in large}, source)
    return Start(files, [Tree(values["target"], moved), Tree(source, left)])


def _delete(draw: Random, values: Values) -> Start:
    folder, suffix = values["folder"], values["suffix"]
    others = [other for other in SUFFIXES if other != suffix]
    paths = _scatter(draw, folder, 16, [suffix, suffix, f"{suffix}x", *others])
    files = {path: _text(draw, 2) for path in paths}
    return Start(files, [Tree(folder, _below({p: t for p, t in files.items() if not p.endswith(suffix)}, folder))])


def _permissions(draw: Random, values: Values) -> Start:
    folder = values["folder"]
    paths = _scatter(draw, folder, 10, (".sh", ".sh", ".cfg", ".txt"))
    files = {path: f"echo {number}\n" for number, path in enumerate(paths)}
    wanted = {
        path.removeprefix(f"{folder}/"): int(values["mode" if path.endswith(".sh") else "rest"], 8) for path in paths
    }
    begun = {path: draw.choice([0o600, 0o644, 0o755, 0o666]) for path in paths}
    return Start(files, [Modes(folder, wanted), Tree(folder, _below(files, folder))], begun)


def _sum(draw: Random, values: Values) -> Start:
    places = draw.sample(WORDS, 4)
    places[0] = values["place"]
    rows = [(draw.choice(places), draw.choice(WORDS), draw.randint(1, 900)) for _ in range(draw.randint(80, 160))]
    rows += [(values["place"], values["place"], 17)]
    text = "place,thing,amount\n" + "".join(f"{place},{thing},{amount}\n" for place, thing, amount in rows)
    total = sum(amount for place, _, amount in rows if place == values["place"])
    return Start({values["file"]: text}, [Holds(values["out"], str(total)), Holds(values["file"], text)])


def _count(draw: Random, values: Values) -> Start:
    statuses = [values["status"], "200", "304", "500", "418"]
    lines, count = list[str](), 0
    for number in range(draw.randint(150, 300)):
        path = f"/{draw.choice([values['path'], *WORDS[:3]])}/{draw.choice([values['path'], *WORDS])}"
        # The status also comes as a number of bytes, which is not what is asked for.
        status, size = draw.choice(statuses), draw.choice([values["status"], str(draw.randint(5, 999))])
        count += status == values["status"] and path.startswith(f"/{values['path']}/")
        lines.append(f"10.0.{number % 7}.{number % 31} GET {path} {status} {size}\n")
    return Start({"access.log": "".join(lines)}, [Holds(values["out"], str(count))])


def _rename(draw: Random, values: Values) -> Start:
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


def _pack(draw: Random, values: Values) -> Start:
    folder = values["folder"]
    files = {path: _text(draw, 5) for path in _scatter(draw, folder, 9, SUFFIXES)}
    packed = {path: digest(text) for path, text in files.items()}
    return Start(files, [Unpacks(values["archive"], packed), Tree(folder, _below(files, folder))])


def _unpack(draw: Random, values: Values) -> Start:
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


def _merge(draw: Random, values: Values) -> Start:
    lines = [f"{draw.choice(WORDS)}{draw.choice(['', ' ', '-'])}{draw.randint(0, 30)}" for _ in range(120)]
    lines += [word.upper() for word in draw.sample(WORDS, 5)]
    draw.shuffle(lines)
    files = {values[name]: "".join(f"{line}\n" for line in part) for name, part in (("a", lines[:70]), ("b", lines[55:]))}
    return Start(files, [Holds(values["out"], "".join(f"{line}\n" for line in sorted(set(lines))))])


def _replace(draw: Random, values: Values) -> Start:
    folder, old, new = values["folder"], values["old"], values["new"]
    files = {
        path: "".join(f"{draw.choice(WORDS)} = {draw.choice([old, old.replace('.', '-'), 'other'])}\n" for _ in range(8))
        for path in _scatter(draw, folder, 12, (".conf", ".conf", ".conf", ".conf.old", ".txt"))
    }
    done = {path: text.replace(old, new) if path.endswith(".conf") else text for path, text in files.items()}
    return Start(files, [Tree(folder, _below(done, folder))])


def _totals(draw: Random, values: Values) -> Start:
    def table() -> tuple[str, str]:
        rows = [(draw.choice(WORDS[:6]), draw.randint(-20, 99)) for _ in range(draw.randint(5, 40))]
        sums = {name: sum(number for of, number in rows if of == name) for name, _ in rows}
        ranked = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[: int(values["top"])]
        return "".join(f"{name} {number}\n" for name, number in rows), "".join(f"{n} {s}\n" for n, s in ranked)

    tables = [table() for _ in range(4)]
    runs = [({f"in {number}.txt": given}, [f"in {number}.txt"], out) for number, (given, out) in enumerate(tables[1:])]
    return Start({"example.txt": tables[0][0]}, [Script(values["script"], runs)])


def _columns(draw: Random, values: Values) -> Start:
    def table() -> tuple[str, str]:
        rows = [[draw.choice(WORDS[:5]) for _ in range(4)] for _ in range(draw.randint(5, 30))]
        number = int(values["column"]) - 1
        kept = sorted({row[number] for row in rows if row[0] != values["word"]})
        return "".join(f"{';'.join(row)}\n" for row in rows), "".join(f"{word}\n" for word in kept)

    tables = [table() for _ in range(4)]
    runs = [({f"{number}.in": given}, [f"{number}.in"], wanted) for number, (given, wanted) in enumerate(tables[1:])]
    return Start({"example.in": tables[0][0]}, [Script(values["script"], runs)])


def _largest(draw: Random, values: Values) -> Start:
    folder = values["folder"]
    paths = _scatter(draw, folder, 15, SUFFIXES)
    sizes = draw.sample(range(10, 3000), len(paths))
    files = {path: "x" * size for path, size in zip(paths, sizes, strict=True)}
    ranked = sorted(paths, key=lambda path: -len(files[path]))[: int(values["number"])]
    wanted = "".join(f"{path.rpartition('/')[2]}\n" for path in ranked)
    return Start(files, [Holds(values["out"], wanted), Tree(folder, _below(files, folder))])


def _stop(draw: Random, values: Values) -> Start:
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


def _listen(draw: Random, values: Values) -> Start:
    lines = [" ".join(draw.choices(WORDS, k=3)) + f" {draw.randint(100, 999)}" for _ in range(3)]
    return Start({}, [Pipe(values["fifo"], values["out"], lines)])


KINDS = (
    Kind(
        "move_large",
        """Move all files below {source}, those in its folders too, that have more than {size} bytes into a new folder
        {target}, without any folders in it. Leave all other files where they are.""",
        lambda draw: {**_names(draw, "source", "target"), "size": str(draw.randint(200, 3000))},
        _move_large,
        "mkdir -p @target@ && find @source@ -type f -size +@size@c -exec mv -t @target@ {} +",
    ),
    Kind(
        "delete",
        "Delete all files below {folder} whose names end in {suffix}, those in its folders too, and no others.",
        lambda draw: {**_names(draw, "folder"), "suffix": draw.choice(SUFFIXES)},
        _delete,
        "find @folder@ -type f -name '*@suffix@' -delete",
    ),
    Kind(
        "permissions",
        """Give all files below {folder}, those in its folders too, the permissions {mode} where their names end in .sh,
        and {rest} where they do not.""",
        lambda draw: {
            **_names(draw, "folder"),
            "mode": draw.choice(["700", "750", "755", "500"]),
            "rest": draw.choice(["600", "640", "644", "400"]),
        },
        _permissions,
        "find @folder@ -type f -exec chmod @rest@ {} + && find @folder@ -name '*.sh' -exec chmod @mode@ {} +",
    ),
    Kind(
        "sum",
        "Write the sum of the column amount of the rows of {file} whose place is {place} to the file {out}.",
        lambda draw: {
            "file": f"{draw.choice(WORDS)}.csv",
            "place": draw.choice(WORDS),
            "out": f"{draw.choice(WORDS)}.sum",
        },
        _sum,
        "awk -F, '$1 == \"@place@\" { sum += $3 } END { print sum + 0 }' @file@ >@out@",
    ),
    Kind(
        "count",
        """A line of access.log has an address, a method, a path, a status and a number of bytes. Write to the file {out}
        how many lines have the status {status} and a path below the folder {path} of the server.""",
        lambda draw: {
            "out": f"{draw.choice(WORDS)}.count",
            "status": str(draw.choice([404, 403, 201, 502])),
            "path": draw.choice(WORDS[3:]),
        },
        _count,
        "awk '$4 == @status@ && index($3, \"/@path@/\") == 1' access.log | wc -l >@out@",
    ),
    Kind(
        "rename",
        """Rename all files in {folder} that end in .jpeg: sea.jpeg would become {prefix}-sea.jpg, and so on. Leave the
        others as they are.""",
        lambda draw: _names(draw, "folder", "prefix"),
        _rename,
        """cd @folder@ && for name in *.jpeg; do mv -- "$name" "@prefix@-${name%.jpeg}.jpg"; done""",
    ),
    Kind(
        "pack",
        """Pack the folder {folder} into a tar, compressed by gzip, that is called {archive}: where it is unpacked there
        is the folder {folder} with all that is in it. Leave the folder itself as it is.""",
        lambda draw: {"folder": draw.choice(WORDS), "archive": f"{draw.choice(WORDS)}.tar.gz"},
        _pack,
        "tar -czf @archive@ @folder@",
    ),
    Kind(
        "unpack",
        """Unpack the files whose names end in {suffix} from {archive} into a new folder {target}, with their paths as
        they are in the archive, and no others.""",
        lambda draw: {
            "suffix": draw.choice(SUFFIXES),
            "archive": f"{draw.choice(WORDS)}.tar.gz",
            "target": draw.choice(WORDS),
        },
        _unpack,
        "mkdir -p @target@ && tar -xzf @archive@ -C @target@ --wildcards '*@suffix@'",
    ),
    Kind(
        "merge",
        """Write the lines of {a} and {b} to {out}, sorted by the values of their bytes, and each line once.""",
        lambda draw: {name: f"{word}.list" for name, word in _names(draw, "a", "b", "out").items()},
        _merge,
        "LC_ALL=C sort -u @a@ @b@ >@out@",
    ),
    Kind(
        "replace",
        """Replace {old} by {new} wherever it stands in files below {folder} whose names end in .conf, those in its
        folders too. Change no other file, and nothing that only looks like it.""",
        lambda draw: {
            **_names(draw, "folder"),
            "old": f"{draw.choice(WORDS)}.{draw.choice(WORDS)}.example",
            "new": f"{draw.choice(WORDS)}.{draw.choice(WORDS)}.test",
        },
        _replace,
        "old='@old@'; find @folder@ -type f -name '*.conf' -exec sed -i \"s/${old//./\\\\.}/@new@/g\" {} +",
    ),
    Kind(
        "totals",
        """Write a program {script}, executable, that is given the path of a file such as example.txt as its argument: a
        line has a name and a number. It prints the {top} names with the greatest sums of their numbers, a line each with
        the name and the sum, the greatest first, and by name where sums are equal. Where there are fewer names it prints
        them all.""",
        lambda draw: {"script": draw.choice(WORDS), "top": str(draw.randint(2, 4))},
        _totals,
        """cat >@script@ <<'END'
#!/bin/bash
awk '{ sum[$1] += $2 } END { for (name in sum) print name, sum[name] }' "$1" |
    LC_ALL=C sort -k2,2nr -k1,1 | head -n @top@
END
chmod +x @script@""",
    ),
    Kind(
        "columns",
        """Write a program {script}, executable, that is given the path of a file such as example.in as its argument: a
        line has four words with semicolons between them. It prints the words of column {column}, counted from 1, of the
        lines whose first word is not {word}: each word once, a line each, in the order of the alphabet.""",
        lambda draw: {
            "script": draw.choice(WORDS[6:]),
            "column": str(draw.randint(2, 4)),
            "word": draw.choice(WORDS[:5]),
        },
        _columns,
        """cat >@script@ <<'END'
#!/bin/bash
awk -F';' '$1 != "@word@" { print $@column@ }' "$1" | LC_ALL=C sort -u
END
chmod +x @script@""",
    ),
    Kind(
        "largest",
        """Write the names of the {number} largest files below {folder}, those in its folders too, to {out}: a line each
        without folders, the largest first.""",
        lambda draw: {
            **_names(draw, "folder"),
            "number": str(draw.randint(3, 6)),
            "out": f"{draw.choice(WORDS)}.names",
        },
        _largest,
        "find @folder@ -type f -printf '%s %f\\n' | sort -rn | head -n @number@ | cut -d' ' -f2- >@out@",
    ),
    Kind(
        "stop",
        """Some processes run in the background, each with a file of the folder jobs as its argument. End the one whose
        port is {port}, and leave the others, and the files, as they are.""",
        lambda draw: {"port": str(draw.randint(2000, 8999))},
        _stop,
        """conf=$(grep -l '^port=@port@$' jobs/*.conf)
for process in /proc/[0-9]*; do
    [[ $(tr '\\0' ' ' <$process/cmdline) == "bash worker.sh $conf " ]] && kill ${process#/proc/}
done 2>/dev/null""",
    ),
    Kind(
        "listen",
        """Make a FIFO {fifo}, and leave a process running that adds each line which is written to it to the file {out},
        in capital letters. It goes on when a writer has closed the FIFO, and serves the next one.""",
        lambda draw: {"fifo": draw.choice(WORDS), "out": f"{draw.choice(WORDS)}.out"},
        _listen,
        """mkfifo @fifo@
(while :; do while IFS= read -r line; do echo "${line^^}" >>@out@; done <@fifo@; done) >/dev/null 2>&1 &""",
    ),
)
