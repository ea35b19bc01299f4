"""Chores for a shell, made by the dozen: what is asked, what there is to begin with, and what is to be there then.

A kind of chore has names and numbers in its text, between backquotes, that differ from task to task.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gymhost.envs.shelf import terminal_starts as starts
from gymhost.envs.shelf.terminal_starts import SUFFIXES, WORDS, Start, Values, names

__all__ = ["KINDS", "Chore", "Kind", "chore", "solve"]


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
    draw = Random(f"terminal {seed}")
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


KINDS = (
    Kind(
        "move_large",
        """Move all files below {source}, those in its folders too, that have more than {size} bytes into a new
        folder {target}, without any folders in it. Leave all other files where they are.""",
        lambda draw: {**names(draw, "source", "target"), "size": str(draw.randint(200, 3000))},
        starts.move_large,
        "mkdir -p @target@ && find @source@ -type f -size +@size@c -exec mv -t @target@ {} +",
    ),
    Kind(
        "delete",
        "Delete all files below {folder} whose names end in {suffix}, those in its folders too, and no others.",
        lambda draw: {**names(draw, "folder"), "suffix": draw.choice(SUFFIXES)},
        starts.delete,
        "find @folder@ -type f -name '*@suffix@' -delete",
    ),
    Kind(
        "permissions",
        """Give all files below {folder}, those in its folders too, the permissions {mode} where their names end in
        .sh, and {rest} where they do not.""",
        lambda draw: {
            **names(draw, "folder"),
            "mode": draw.choice(["700", "750", "755", "500"]),
            "rest": draw.choice(["600", "640", "644", "400"]),
        },
        starts.permissions,
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
        starts.total,
        "awk -F, '$1 == \"@place@\" { sum += $3 } END { print sum + 0 }' @file@ >@out@",
    ),
    Kind(
        "count",
        """A line of access.log has an address, a method, a path, a status and a number of bytes. Write to the file
        {out} how many lines have the status {status} and a path below the folder {path} of the server.""",
        lambda draw: {
            "out": f"{draw.choice(WORDS)}.count",
            "status": str(draw.choice([404, 403, 201, 502])),
            "path": draw.choice(WORDS[3:]),
        },
        starts.count,
        "awk '$4 == @status@ && index($3, \"/@path@/\") == 1' access.log | wc -l >@out@",
    ),
    Kind(
        "rename",
        """Rename all files in {folder} that end in .jpeg: sea.jpeg would become {prefix}-sea.jpg, and so on. Leave
        the others as they are.""",
        lambda draw: names(draw, "folder", "prefix"),
        starts.rename,
        """cd @folder@ && for name in *.jpeg; do mv -- "$name" "@prefix@-${name%.jpeg}.jpg"; done""",
    ),
    Kind(
        "pack",
        """Pack the folder {folder} into a tar, compressed by gzip, that is called {archive}: where it is unpacked
        there is the folder {folder} with all that is in it. Leave the folder itself as it is.""",
        lambda draw: {"folder": draw.choice(WORDS), "archive": f"{draw.choice(WORDS)}.tar.gz"},
        starts.pack,
        "tar -czf @archive@ @folder@",
    ),
    Kind(
        "unpack",
        """Unpack the files whose names end in {suffix} from {archive} into a new folder {target}, with their paths
        as they are in the archive, and no others.""",
        lambda draw: {
            "suffix": draw.choice(SUFFIXES),
            "archive": f"{draw.choice(WORDS)}.tar.gz",
            "target": draw.choice(WORDS),
        },
        starts.unpack,
        "mkdir -p @target@ && tar -xzf @archive@ -C @target@ --wildcards '*@suffix@'",
    ),
    Kind(
        "merge",
        """Write the lines of {a} and {b} to {out}, sorted by the values of their bytes, and each line once.""",
        lambda draw: {name: f"{word}.list" for name, word in names(draw, "a", "b", "out").items()},
        starts.merge,
        "LC_ALL=C sort -u @a@ @b@ >@out@",
    ),
    Kind(
        "replace",
        """Replace {old} by {new} wherever it stands in files below {folder} whose names end in .conf, those in its
        folders too. Change no other file, and nothing that only looks like it.""",
        lambda draw: {
            **names(draw, "folder"),
            "old": f"{draw.choice(WORDS)}.{draw.choice(WORDS)}.example",
            "new": f"{draw.choice(WORDS)}.{draw.choice(WORDS)}.test",
        },
        starts.replace,
        "old='@old@'; find @folder@ -type f -name '*.conf' -exec sed -i \"s/${old//./\\\\.}/@new@/g\" {} +",
    ),
    Kind(
        "totals",
        """Write a program {script}, executable, that is given the path of a file such as example.txt as its
        argument: a line has a name and a number. It prints the {top} names with the greatest sums of their
        numbers, a line each with the name and the sum, the greatest first, and by name where sums are equal.
        Where there are fewer names it prints them all.""",
        lambda draw: {"script": draw.choice(WORDS), "top": str(draw.randint(2, 4))},
        starts.totals,
        """cat >@script@ <<'END'
#!/bin/bash
awk '{ sum[$1] += $2 } END { for (name in sum) print name, sum[name] }' "$1" |
    LC_ALL=C sort -k2,2nr -k1,1 | head -n @top@
END
chmod +x @script@""",
    ),
    Kind(
        "columns",
        """Write a program {script}, executable, that is given the path of a file such as example.in as its
        argument: a line has four words with semicolons between them. It prints the words of column {column},
        counted from 1, of the lines whose first word is not {word}: each word once, a line each, in the order
        of the alphabet.""",
        lambda draw: {
            "script": draw.choice(WORDS[6:]),
            "column": str(draw.randint(2, 4)),
            "word": draw.choice(WORDS[:5]),
        },
        starts.columns,
        """cat >@script@ <<'END'
#!/bin/bash
awk -F';' '$1 != "@word@" { print $@column@ }' "$1" | LC_ALL=C sort -u
END
chmod +x @script@""",
    ),
    Kind(
        "largest",
        """Write the names of the {number} largest files below {folder}, those in its folders too, to {out}: a line
        each without folders, the largest first.""",
        lambda draw: {
            **names(draw, "folder"),
            "number": str(draw.randint(3, 6)),
            "out": f"{draw.choice(WORDS)}.names",
        },
        starts.largest,
        "find @folder@ -type f -printf '%s %f\\n' | sort -rn | head -n @number@ | cut -d' ' -f2- >@out@",
    ),
    Kind(
        "stop",
        """Some processes run in the background, each with a file of the folder jobs as its argument. End the one
        whose port is {port}, and leave the others, and the files, as they are.""",
        lambda draw: {"port": str(draw.randint(2000, 8999))},
        starts.stop,
        """conf=$(grep -l '^port=@port@$' jobs/*.conf)
for process in /proc/[0-9]*; do
    [[ $(tr '\\0' ' ' <$process/cmdline) == "bash worker.sh $conf " ]] && kill ${process#/proc/}
done 2>/dev/null""",
    ),
    Kind(
        "listen",
        """Make a FIFO {fifo}, and leave a process running that adds each line which is written to it to the file
        {out}, in capital letters. It goes on when a writer has closed the FIFO, and serves the next one.""",
        lambda draw: {"fifo": draw.choice(WORDS), "out": f"{draw.choice(WORDS)}.out"},
        starts.listen,
        """mkfifo @fifo@
(while :; do while IFS= read -r line; do echo "${line^^}" >>@out@; done <@fifo@; done) >/dev/null 2>&1 &""",
    ),
)
