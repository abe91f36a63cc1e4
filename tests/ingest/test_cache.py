"""Traced graphs on disk: found again while nothing changes, and never when something did."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

from traincast.errors import InputFileError, InvalidValueError
from traincast.graph import graph_to_dict
from traincast.ingest import cache, resolve

NET = """
    import torch
    from torch import nn

    def build(width: int = 8):
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3)), torch.zeros(2, 4)
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on disk and in the process."""
    folder = tmp_path / "graphs"
    monkeypatch.setenv("TRAINCAST_CACHE", str(folder))
    forget()
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def save(text: str, name: str = "net.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return save


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists what is traced from here on."""
    from traincast.ingest.pytorch import probe

    done: list[str] = []
    original = probe.trace_source

    def trace_source(source, **options):
        done.append(source.reference)
        return original(source, **options)

    monkeypatch.setattr(probe, "trace_source", trace_source)
    return done


def forget(*modules: str) -> None:
    """Drop the graphs, and modules, that the process remembers: be as a new process."""
    cache._memory.clear()
    for module in modules:
        sys.modules.pop(module, None)


def entry(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def in_a_process(code: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python anew, with the same import path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip()


def test_a_second_reference_is_not_traced(kept, write, monkeypatch) -> None:
    from traincast.ingest.pytorch import probe

    reference = f"{write(NET)}:build"
    first = resolve(reference)
    forget()
    monkeypatch.setattr(probe, "trace_source", lambda *_, **__: pytest.fail("traced again"))
    again = resolve(reference)
    assert graph_to_dict(again) == graph_to_dict(first)
    assert again.parameters == first.parameters
    assert again.ops == first.ops
    assert resolve(reference) is again


def test_a_kept_graph_needs_no_torch(kept) -> None:
    resolve("lenet5", fixed=(4, 0))
    code = """
        import sys
        from traincast.ingest import resolve
        print(resolve("lenet5", fixed=(4, 0)).batch, "torch" in sys.modules)
    """
    assert said(in_a_process(code)) == "4 False"
    assert said(in_a_process(code, TRAINCAST_CACHE="off")) == "4 True"


def test_libraries_are_kept(kept, traces) -> None:
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    first = resolve("torchvision:alexnet?num_classes=7")
    forget()
    assert graph_to_dict(resolve("torchvision:alexnet?num_classes=7")) == graph_to_dict(first)
    with pytest.raises(InvalidValueError):
        resolve("torchvision:alexnet?no_such=7")
    assert len(traces) == 2
    assert len(list(kept.iterdir())) == 1


def test_built_in_networks_made_again_are_kept(kept, traces) -> None:
    first = resolve("lenet5", fixed=(4, 0))
    forget()
    assert graph_to_dict(resolve("lenet5", fixed=(4, 0))) == graph_to_dict(first)
    assert len(traces) == 1


def test_arguments_image_and_sizes_are_told_apart(kept, write, traces) -> None:
    path = write(NET)
    widths = [resolve(f"{path}:build?width={w}").parameter_count for w in (8, 16, 8, 16)]
    # (4 + 1)·w + (w + 1)·3
    assert widths == [67, 131, 67, 131]
    resolve(f"{path}:build", fixed=(5, 0))
    assert resolve(f"{path}:build", fixed=(7, 0)).batch == 7
    assert len(traces) == 4


def test_a_change_of_the_file_is_seen(kept, write, traces) -> None:
    path = write(NET)
    before = resolve(f"{path}:build").parameter_count
    write(NET.replace("width: int = 8", "width: int = 16"))
    assert (before, resolve(f"{path}:build").parameter_count) == (67, 131)
    write(NET)
    assert resolve(f"{path}:build").parameter_count == 67


MAYBE = """
WIDTH = 8
try:
    WIDTH = int(open(HERE / 'maybe.txt').read())
except FileNotFoundError:
    pass
"""


@pytest.mark.parametrize(
    ("name", "first", "second", "line"),
    [
        ("cached_neighbour.py", "WIDTH = 8", "WIDTH = 16", "from cached_neighbour import WIDTH"),
        ("width.txt", "8", "16", "WIDTH = int(open(HERE / 'width.txt').read())"),
        ("maybe.txt", None, "16", MAYBE),
    ],
    ids=["module", "file", "file that was not there"],
)  # fmt: skip
def test_a_change_of_what_the_file_reads_is_seen(
    kept, write, traces, name: str, first: str | None, second: str, line: str
) -> None:
    head = f"from pathlib import Path\nHERE = Path(__file__).parent\n{line}\n"
    reference = write(head + textwrap.dedent(NET.replace("int = 8", "int = WIDTH"))) + ":build"
    if first is not None:
        write(first, name)
    counts = []
    for text in (first, first, second):
        forget(Path(name).stem)
        if text == second:
            write(second, name)
        counts.append(resolve(reference).parameter_count)
    assert counts == [67, 67, 131]
    assert len(traces) == 2


def test_code_that_was_loaded_before_its_file_changed_is_not_kept(kept, write) -> None:
    """The process still runs the old neighbour; nobody else may be given its graph."""
    write("WIDTH = 8", "stale_neighbour.py")
    head = "from stale_neighbour import WIDTH\n"
    reference = write(head + textwrap.dedent(NET.replace("int = 8", "int = WIDTH"))) + ":build"
    old = resolve(reference).parameter_count
    write("WIDTH = 16", "stale_neighbour.py")
    still_old = resolve(reference).parameter_count
    forget("stale_neighbour")
    assert [old, still_old, resolve(reference).parameter_count] == [67, 67, 131]


def test_code_that_asks_its_environment_is_not_kept(kept, write, traces, monkeypatch) -> None:
    text = NET.replace("(4, width)", "(4, width, 'BIAS' in os.environ)")
    reference = write("import os\n" + textwrap.dedent(text)) + ":build"
    without = resolve(reference).parameter_count
    monkeypatch.setenv("BIAS", "1")
    assert (without, resolve(reference).parameter_count) == (59, 67)
    assert len(traces) == 2


def test_a_configuration_is_known_by_its_content(kept, tmp_path, traces) -> None:
    pytest.importorskip("transformers")
    config = {
        "model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 11,
        "n_positions": 64,
    }  # fmt: skip
    paths = [tmp_path / folder / "tiny.json" for folder in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(config, indent=len(path.parent.name)))
    one, two = (resolve(f"hf:{path}") for path in paths)
    assert len(traces) == 1
    assert [one.source, two.source] == [f"hf:{path}" for path in paths]
    assert one.ops == two.ops
    paths[1].write_text(json.dumps(config | {"n_layer": 2}))
    assert len(resolve(f"hf:{paths[1]}").ops) > len(one.ops)
    paths[1].unlink()
    with pytest.raises(InputFileError, match="there is no such file"):
        resolve(f"hf:{paths[1]}")


def test_a_graph_held_to_a_length_is_kept_for_that_length(kept, write, traces) -> None:
    reference = write(
        """
        import torch
        from torch import nn

        class Scan(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.Linear(4, 4)

            def forward(self, x):
                h = x[:, 0]
                for t in range(x.shape[1]):
                    h = self.cell(h + x[:, t])
                return h

        def build(batch: int = 2, seq: int = 64):
            return Scan(), torch.zeros(batch, seq, 4)
        """
    )
    lengths = []
    for seq in (5, 6, 5, 6):
        forget()
        graph = resolve(f"{reference}:build", seq=seq)
        lengths.append(sum(op.kind == "linear" for op in graph.ops))
    assert lengths == [5, 6, 5, 6]
    assert len(traces) == 2


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "a flipped byte": lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:],
    "no gzip": lambda _: b"not a graph",
    "no JSON": lambda _: gzip.compress(b"{"),
    "another shape": lambda _: gzip.compress(b"[1, 2]"),
    "another version": lambda data: gzip.compress(
        gzip.decompress(data).replace(b'"form":1', b'"form":999')
    ),
    "another graph version": lambda data: gzip.compress(
        gzip.decompress(data).replace(b'"version":1', b'"version":999')
    ),
    "another entry": lambda data: gzip.compress(
        gzip.decompress(data).replace(b'"key":"', b'"key":"f')
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_made_again(kept, write, traces, damage) -> None:
    reference = f"{write(NET)}:build"
    first = resolve(reference)
    path = entry(kept)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert path.read_bytes() != good
    forget()
    assert graph_to_dict(resolve(reference)) == graph_to_dict(first)
    assert len(traces) == 2
    assert entry(kept).read_bytes() == good


def test_a_folder_that_cannot_be_used_does_no_harm(kept, write, monkeypatch) -> None:
    reference = f"{write(NET)}:build"
    kept.write_text("a file stands where the folder should be")
    assert resolve(reference).parameter_count == 67
    for reserved in ("/proc/nowhere", "/dev/null/graphs"):
        with monkeypatch.context() as patch:
            patch.setenv("TRAINCAST_CACHE", reserved)
            forget()
            assert resolve(reference).parameter_count == 67


def test_a_read_only_folder_still_serves_what_it_holds(kept, write, traces, monkeypatch) -> None:
    reference = f"{write(NET)}:build"
    resolve(reference)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    # Modes do not stop a superuser, who may run the tests.
    for name in ("utime", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    forget()
    assert resolve(reference).parameter_count == 67
    assert len(traces) == 1
    assert resolve(f"{reference}?width=16").parameter_count == 131
    assert len(list(kept.iterdir())) == 1


def test_two_processes_may_write_the_same_entry(kept, write) -> None:
    reference = f"{write(NET)}:build"
    code = f"from traincast.ingest import resolve; print(resolve({reference!r}).parameter_count)"
    both = [in_a_process(code), in_a_process(code)]
    assert [said(process) for process in both] == ["67", "67"]
    assert entry(kept).name.endswith(".graph.gz")
    assert json.loads(gzip.decompress(entry(kept).read_bytes()))["graph"]["name"] == "net"


@pytest.mark.parametrize("value", ["off", "0", "OFF"])
def test_the_cache_can_be_turned_off(kept, write, traces, monkeypatch, value: str) -> None:
    monkeypatch.setenv("TRAINCAST_CACHE", value)
    for _ in range(2):
        resolve(f"{write(NET)}:build")
    assert len(traces) == 2
    assert cache.folder() is None
    assert cache.usage() == (0, 0)


def test_where_graphs_are_kept(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("TRAINCAST_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.folder() == tmp_path / ".cache" / "traincast" / "graphs"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.folder() == tmp_path / ".cache" / "traincast" / "graphs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "traincast" / "graphs"


def test_entries_used_longest_ago_make_room_and_other_files_stay(kept, write, monkeypatch) -> None:
    path = write(NET)
    kept.mkdir()
    (kept / "notes.txt").write_text("not ours" * 1000)
    names = []
    for age, width in enumerate((8, 16, 24)):
        before = set(kept.iterdir())
        resolve(f"{path}:build?width={width}")
        (new,) = set(kept.iterdir()) - before
        os.utime(new, (1e9 + age, 1e9 + age))
        names.append(new.name)
    assert cache.usage()[0] == 3
    forget()
    resolve(f"{path}:build?width=8")  # used last from here on
    monkeypatch.setattr(cache, "LIMIT_BYTES", cache.usage()[1])
    resolve(f"{path}:build?width=32")
    left = {file.name for file in kept.iterdir()}
    assert names[0] in left
    assert names[1] not in left
    assert cache.usage()[1] <= cache.LIMIT_BYTES
    assert cache.clear() > 0
    assert [file.name for file in kept.iterdir()] == ["notes.txt"]
    assert cache.usage() == (0, 0)


def test_a_package_installed_in_place_has_no_version(tmp_path, monkeypatch) -> None:
    for name, origin in (("plain", None), ("inplace", {"dir_info": {"editable": True}})):
        info = tmp_path / f"cachetest_{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: cachetest-{name}\nVersion: 1.2\n"
        )
        if origin:
            (info / "direct_url.json").write_text(json.dumps({"url": "file:///x", **origin}))
    before = cache.installed()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cache.installed() != before
    assert cache.version_of("cachetest-plain") == "1.2"
    assert cache.version_of("cachetest-inplace") is None
    assert cache.version_of("cachetest-absent") == ""
    assert cache.key_of("x", {"inplace": None}) is None
    assert cache.key_of("x", {"plain": "1.2"}) != cache.key_of("x", {"plain": "1.3"})
