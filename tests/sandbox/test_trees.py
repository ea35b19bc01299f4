"""Archives: what is packed, and what a hostile one can't do."""

import io
import os
import random
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymhost.envs.sandbox.trees import Download, extract, pack_files, pack_folder
from gymhost.wire.errors import InvalidArgument, TooLarge

MIB = 2**20


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> bytes:
    """One entry of an archive, as it says itself."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(content)
    padding = b"\0" * (-len(content) % 512)
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + content + padding


def symlink(name: str, target: str) -> bytes:
    return member(name, kind=tarfile.SYMTYPE, link=target)


END = b"\0" * 1024


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Path]:
    """A folder whose folder `target` is unpacked to; it is as it was when the test is over."""
    (tmp_path / "beside").write_text("untouched")
    yield tmp_path
    assert (tmp_path / "beside").read_text() == "untouched"
    assert set(os.listdir(tmp_path)) <= {"beside", "target"}


def unpack(around: Path, *members: bytes, limit: int = MIB, entries: int = 100) -> Download:
    return extract(b"".join(members) + END, around / "target", limit=limit, entries=entries)


def there(around: Path) -> list[str]:
    target = around / "target"
    return sorted(str(path.relative_to(target)) for path in target.rglob("*"))


def reason(download: Download) -> str:
    (left,) = download.left_out
    return left.reason


@pytest.mark.parametrize(
    "name", ["../out", "a/../../out", "/out", "//out", "a/..", "..", "./../beside", "a/../beside", "x/" * 1200 + "deep"]
)
def test_no_path_leads_out(around: Path, name: str):
    download = unpack(around, member(name, b"x"), member("ok", b"y"))
    assert there(around) == ["ok"]
    assert "path" in reason(download)
    assert download.files == 1


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "/", "..", "../beside", "a/../../beside", "a/..", "./..", "../target/../beside", ""]
)
def test_no_link_leads_out(around: Path, target: str):
    download = unpack(around, symlink("link", target))
    assert there(around) == []
    assert "link" in reason(download)


def test_links_that_stay_inside_are_made(around: Path):
    download = unpack(
        around,
        member("a/b/file", b"x"),
        symlink("a/b/up", "../../top"),
        symlink("a/up", ".."),
        symlink("same", "./a//b/file"),
        symlink("dangling", "not/there"),
    )
    assert download.complete
    assert (around / "target" / "same").read_bytes() == b"x"
    for path in (around / "target").rglob("*"):
        assert path.resolve().is_relative_to(around / "target")


def test_links_together_do_not_lead_out(around: Path):
    # Each is harmless where it stands; `deep` is at another depth than it seems.
    unpack(
        around,
        member("a/b/c/", kind=tarfile.DIRTYPE),
        symlink("deep", "a/b/c"),
        symlink("a/b/c/up", "../../.."),
        symlink("deep/up-by-link", "../../.."),
        symlink("out", "deep/../../../.."),
        symlink("out2", "a/b/c/up/.."),
        member("a/hard", kind=tarfile.LNKTYPE, link="a/b/c/up"),
        member("hard", kind=tarfile.LNKTYPE, link="a/b/c/up"),
    )
    assert there(around) == ["a", "a/b", "a/b/c", "a/b/c/up", "deep"]
    for path in (around / "target").rglob("*"):
        assert path.resolve().is_relative_to(around / "target")


@pytest.mark.parametrize("through", ["a", "a/b"])
def test_nothing_is_written_through_a_link(around: Path, through: str):
    download = unpack(
        around,
        symlink(through, "."),
        member(f"{through}/file", b"x"),
        member(through, b"y"),
        member(f"{through}/", kind=b"5"),
    )
    assert [left.path for left in download.left_out] == [f"{through}/file", through, f"{through}/"]
    assert (around / "target" / through).is_symlink()
    assert len(there(around)) == through.count("/") + 1


def test_a_folder_that_is_given_by_a_link_is_written_to(around: Path):
    (around / "target").mkdir()
    (around / "beside").unlink()
    (around / "beside").symlink_to("target")
    assert extract(member("file", b"x") + END, around / "beside", limit=MIB, entries=9).complete
    assert (around / "target" / "file").read_bytes() == b"x"
    (around / "beside").unlink()
    (around / "beside").write_text("untouched")


def test_a_folder_with_something_in_it_is_refused(around: Path):
    (around / "target").mkdir()
    (around / "target" / "link").symlink_to("..")
    with pytest.raises(FileExistsError):
        unpack(around, member("link/beside", b"x"))


@pytest.mark.parametrize(
    "kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"x", b"g", b"Z"]
)
def test_only_files_folders_and_links_are_made(around: Path, kind: bytes):
    download = unpack(around, member("special", kind=kind), member("ok", b"x"))
    assert there(around) == ["ok"]
    assert len(download.left_out) == 1


def test_dangerous_bits_are_not_set(around: Path):
    unpack(
        around,
        member("file", b"x", mode=0o7777),
        member("none", b"x", mode=0),
        member("folder/", kind=tarfile.DIRTYPE, mode=0o7777),
        member("closed/", kind=tarfile.DIRTYPE, mode=0),
        member("closed/in", b"x"),
    )
    modes = {path: stat.S_IMODE((around / "target" / path).lstat().st_mode) for path in there(around)}
    assert modes == {"file": 0o755, "none": 0o600, "folder": 0o755, "closed": 0o700, "closed/in": 0o644}


def test_hard_links_are_those_of_files_that_were_unpacked(around: Path):
    download = unpack(
        around,
        member("a/file", b"x"),
        member("b/linked", kind=tarfile.LNKTYPE, link="a/file"),
        member("again", kind=tarfile.LNKTYPE, link="./b/linked"),
        member("out", kind=tarfile.LNKTYPE, link="../beside"),
        member("absolute", kind=tarfile.LNKTYPE, link="/etc/passwd"),
        member("missing", kind=tarfile.LNKTYPE, link="nothing"),
    )
    assert [left.path for left in download.left_out] == ["out", "absolute", "missing"]
    assert (around / "target" / "again").read_bytes() == b"x"
    assert (around / "target" / "b" / "linked").stat().st_nlink == 3
    assert (download.files, download.size) == (3, 1)


def test_what_comes_twice_is_written_once(around: Path):
    download = unpack(around, member("a", b"first"), member("a", b"second"), member("d/x", b""), member("d", b"z"))
    assert (around / "target" / "a").read_bytes() == b"first"
    assert [left.path for left in download.left_out] == ["a", "d"]


def test_bytes_are_bounded(around: Path):
    download = unpack(around, member("a", b"x" * 600), member("b", b"x" * 500), member("c", b"x" * 400), limit=1000)
    assert there(around) == ["a", "c"]
    assert download.size == 1000
    assert "limit=" in reason(download)


def test_entries_are_bounded(around: Path):
    download = unpack(around, *(member(f"f{number}") for number in range(50)), entries=20)
    assert len(there(around)) == 20
    assert "entries=20" in reason(download)


def test_folders_that_paths_imply_are_bounded_too(around: Path):
    download = unpack(around, *(member(f"{number}/" * 150 + "f") for number in range(20)), entries=30)
    assert not download.complete
    assert sum(1 for _ in os.walk(around / "target")) < 1200


def test_folders_are_not_nested_deeper_than_programs_can_walk(around: Path):
    download = unpack(around, member("d/" * 900 + "f"), member("e/" * 100 + "f"))
    assert "deep" in reason(download)
    assert (download.files, (around / "target/d").exists()) == (1, False)
    shutil.rmtree(around / "target")


@pytest.mark.parametrize("name", ["x" * 300, "a/" + "y" * 256 + "/z", "a\nb", "\udcff", "-rf", " ", "a//b/./c"])
def test_names_are_kept_or_left_out(around: Path, name: str):
    download = unpack(around, member(name, b"x"), member("ok", b"y"))
    assert (around / "target" / "ok").exists()
    kept = (around / "target" / name).exists() if len(name) < 256 else False
    assert kept == download.complete


def test_an_archive_that_is_cut_off_gives_what_came(around: Path):
    whole = member("a", b"x" * 1000) + member("b", b"y" * 1000)
    download = extract(whole[:2048], around / "target", limit=MIB, entries=9)
    assert there(around) == ["a"]
    assert "cut off" in reason(download)


def test_sizes_that_lie_are_no_way_round_the_bounds(around: Path):
    header = bytearray(member("huge"))
    header[124:136] = b"\x80" + b"\xff" * 11
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    download = unpack(around, bytes(header))
    assert there(around) == []
    assert "cut off" in reason(download)


def test_what_is_no_archive_harms_nothing(around: Path):
    rolls = random.Random(4)
    good = member("a", b"x" * 700) + symlink("l", "a") + member("n" * 200, b"y") + END
    for trial in range(300):
        data = bytearray(good)
        for _ in range(trial % 7 + 1):
            data[rolls.randrange(len(data))] = rolls.randrange(256)
        cut = rolls.randrange(len(data)) if trial % 3 == 0 else len(data)
        target = around / "target" / str(trial)
        extract(bytes(data[:cut]), target, limit=2000, entries=9)
        for path in target.rglob("*"):
            assert path.is_symlink() or path.resolve().is_relative_to(target)
    assert extract(rolls.randbytes(5000), around / "target" / "noise", limit=1, entries=1).files == 0


def test_a_target_that_can_not_be_written_to_is_an_error(around: Path):
    with pytest.raises(NotADirectoryError):
        extract(member("a", b"x") + END, around / "beside" / "in", limit=MIB, entries=9)


def test_a_folder_is_packed_as_it_is(tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_bytes(b"x" * 5000)
    (source / "sub" / "file").chmod(0o4751)
    (source / "link").symlink_to("sub/file")
    (source / "to-folder").symlink_to("sub")
    (source / ("n" * 250)).write_text("long")
    (source / "\udcff").write_text("odd")
    with tarfile.open(fileobj=io.BytesIO(pack_folder(source, MIB)), errors="surrogateescape") as archive:
        members = {info.name: info for info in archive}
    assert set(members) == {"./sub", "./sub/file", "./link", "./to-folder", f"./{'n' * 250}", "./\udcff"}
    assert members["./sub/file"].mode == 0o751
    assert members["./sub/file"].size == 5000
    assert members["./to-folder"].linkname == "sub"
    assert {(info.uid, info.gid) for info in members.values()} == {(0, 0)}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", "hop/outside", ".."])
def test_a_link_that_leads_out_is_not_packed(tmp_path: Path, target: str):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "hop").mkdir()
    (tmp_path / "outside").write_text("x")
    if target.startswith("hop"):
        (source / "hop").rmdir()
        (source / "hop").symlink_to("sub/..")
        target = "hop/../outside"
    (source / "link").symlink_to(target)
    with pytest.raises(InvalidArgument, match="leads out"):
        pack_folder(source, MIB)


def test_what_can_not_be_packed_is_refused(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("four")
    with pytest.raises(TooLarge, match="limit="):
        pack_folder(source, 3)
    with pytest.raises(NotADirectoryError):
        pack_folder(source / "file", MIB)
    with pytest.raises(FileNotFoundError):
        pack_folder(source / "nothing", MIB)
    os.mkfifo(source / "fifo")
    with pytest.raises(InvalidArgument, match="neither"):
        pack_folder(source, MIB)


@pytest.mark.parametrize("name", ["", ".", "/abs", "../up", "a/../b", "a\0b", "folder/", ".."])
def test_names_of_files_to_pack_stay_inside(name: str):
    with pytest.raises(InvalidArgument, match="name of a file"):
        pack_files({name: "x"}, MIB)


@pytest.mark.parametrize("names", [("a", "a/b"), ("a", "./a"), ("a/b/c", "a/b")])
def test_names_of_files_to_pack_fit_together(names: tuple[str, ...]):
    with pytest.raises(InvalidArgument, match="same path, or one is a folder"):
        pack_files(dict.fromkeys(names, "x"), MIB)
