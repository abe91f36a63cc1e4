"""What users build themselves, and what torchvision, timm and Transformers build for them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from traincast.errors import (
    IngestError,
    InputFileError,
    InvalidValueError,
    MissingExtraError,
    UnknownNameError,
)
from traincast.graph import Graph
from traincast.ingest import resolve
from traincast.simulate.predict import predict

torch = pytest.importorskip("torch", reason="tracing a module needs torch")

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.out = nn.Linear(width, 10)
    def forward(self, x):
        return self.out(x)
"""
# A linear layer of 32 to 10 has 32 · 10 weights and 10 biases, and 2 · 32 · 10 FLOPs a sample.
PARAMETERS, FLOPS = 330, 640

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write model.py and return its reference; lines are counted from the body's first."""

    def save(body: str, function: str = "build", name: str = "model.py") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(HEAD + textwrap.dedent(body))
        return f"{tmp_path / name}:{function}"

    monkeypatch.chdir(tmp_path)
    return save


def line_of(reference: str, code: str) -> str:
    path = Path(reference.rpartition(":")[0])
    number = next(i for i, s in enumerate(path.read_text().splitlines(), 1) if code in s)
    return f"{path}:{number}"


def flops_per_sample(graph: Graph, batch: int = 6) -> float:
    return predict(graph, batch=batch).step.flops[0] / batch


RETURNS = {
    "an example": "def build(): return Net(), torch.zeros(4, 32)",
    "a tuple of examples": "def build(): return Net(), (torch.zeros(4, 32),)",
    "examples by name": "def build(): return Net(), {'x': torch.zeros(4, 32)}",
    "a list": "def build(): return [Net(), [torch.zeros(4, 32)]]",
    "an example for a batch": "def build(batch): return Net(), torch.zeros(batch, 32)",
    "arguments with defaults": "def build(batch=7, w=32): return Net(w), torch.zeros(batch, w)",
    "half precision": "def build(): return Net().bfloat16(), torch.zeros(4, 32)",
    "any arguments": "def build(**rest): return Net(), torch.zeros(4, 32)",
    "a loss": """
        class Loss(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = Net()
            def forward(self, x, y):
                return F.cross_entropy(self.net(x), y)
        def build(batch):
            return Loss(), (torch.zeros(batch, 32), torch.zeros(batch, dtype=torch.long))
        """,
    "a dataclass": """
        from dataclasses import dataclass
        @dataclass
        class Out:
            logits: object
        class Wrapped(Net):
            def forward(self, x):
                return Out(super().forward(x))
        def build(): return Wrapped(), torch.zeros(4, 32)
        """,
    "values in the builder": """
        def build():
            rates = torch.linspace(0, 0.3, 4).tolist()
            return nn.Sequential(*[nn.Dropout(r) for r in rates], Net()), torch.zeros(4, 32)
        """,
    "a late import": """
        def build():
            from neighbour import WIDTH
            return Net(WIDTH), torch.zeros(4, WIDTH)
        """,
}


@pytest.mark.parametrize("what", RETURNS)
def test_a_function_may_return(write, tmp_path, what: str) -> None:
    (tmp_path / "neighbour.py").write_text("WIDTH = 32")
    graph = resolve(write(RETURNS[what]))
    assert graph.parameter_count == PARAMETERS
    assert flops_per_sample(graph) == FLOPS
    assumed = [] if what == "a loss" else ["loss: cross-entropy on the output is assumed"]
    assert list(graph.notes) == assumed
    assert graph.name == "model"


def test_a_module_alone_is_fed_images_and_that_is_said(write) -> None:
    conv = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())"
    graph = resolve(write(f"def build(): return {conv}"), image=32)
    assert "input: images of 3×32×32 are assumed" in graph.notes
    # 30×30 positions of 8 channels from 3 · 3 · 3 inputs.
    assert flops_per_sample(graph) == 2 * 30 * 30 * 8 * 27
    with pytest.raises(IngestError, match=r"assumed to be images of 3×224×224.*example_inputs"):
        resolve(write("", "Net"))


def test_a_class_serves_as_a_function(write) -> None:
    body = """
        class Conv(nn.Module):
            def __init__(self, width=8):
                super().__init__()
                self.conv = nn.Conv2d(3, width, 1)
            def forward(self, x):
                return self.conv(x).mean((2, 3))
        """
    reference = write(body, "Conv")
    assert resolve(reference).parameter_count == 3 * 8 + 8
    assert resolve(f"{reference}?width=16").parameter_count == 3 * 16 + 16


def test_segmentation_is_trained_pixel_by_pixel(write) -> None:
    graph = resolve(write("def build(): return nn.Conv2d(3, 21, 3, padding=1)"), image=16)
    loss = next(op for op in graph.ops if op.kind == "cross_entropy")
    assert [s.at(2, 0) for s in graph.tensors[loss.inputs[0]].shape] == [2, 21, 16, 16]
    assert [s.at(2, 0) for s in graph.tensors[loss.inputs[1]].shape] == [2, 16, 16]


def test_sequence_and_image_reach_a_builder_that_takes_them(write) -> None:
    body = """
        def tokens(batch, seq):
            net = nn.Sequential(nn.Embedding(100, 32), Net())
            return net, torch.zeros(batch, seq, dtype=torch.long)
        def pixels(batch, image=8):
            net = nn.Sequential(nn.Flatten(), Net(3 * image**2))
            return net, torch.zeros(batch, 3, image, image)
        """
    graph = resolve(write(body, "tokens"))
    assert graph.has_sequence
    assert predict(graph, batch=2, seq=50).step.flops[0] == 2 * 50 * FLOPS
    assert resolve(write(body, "pixels"), image=4).parameter_count == 48 * 10 + 10


def test_a_tensor_that_all_samples_share_keeps_its_shape(write) -> None:
    body = """
        class Masked(Net):
            def forward(self, x, mask):
                return super().forward(x) @ mask
        def build(): return Masked(), (torch.zeros(4, 32), torch.zeros(10, 10))
        """
    graph = resolve(write(body))
    assert [s.at(3, 0) for s in graph.tensors["input_1"].shape] == [10, 10]


def test_arguments_that_nobody_takes_are_refused(write) -> None:
    reference = write("def build(width=32): return Net(width), torch.zeros(2, width)")
    assert resolve(f"{reference}?width=16").parameter_count == 170
    with pytest.raises(UnknownNameError, match=r"'widht'; did you mean width"):
        resolve(f"{reference}?widht=16")
    with pytest.raises(InvalidValueError, match="takes no argument `image`"):
        resolve(reference, image=32)


FORWARD = """
    class Bad(Net):
        def forward(self, x):
            {line}
            return super().forward(x)
    def build(): return Bad(), torch.zeros(4, 32)
    """
FAILS = {
    "k = [1][int(x.sum().item()) + 9**9]": "needs the values of a tensor",
    "assert x.shape[-1] == 7, 'seven'": "AssertionError: seven",
    "import sys; sys.exit(3)": "SystemExit: 3",
    "x = torch.cat([x, x[:, :1]], 1)": "RuntimeError",
}


@pytest.mark.parametrize("line", FAILS)
def test_a_forward_that_fails_names_the_users_line(write, line: str) -> None:
    reference = write(FORWARD.replace("{line}", line))
    with pytest.raises(IngestError) as error:
        resolve(reference)
    assert FAILS[line] in str(error.value)
    last = "return self.out(x)" if "cat" in line else line
    assert line_of(reference, last) in str(error.value)


BUILDS = {
    'raise RuntimeError("no luck")': "RuntimeError: no luck",
    'return {}["key"]': "KeyError: 'key'",
    "import sys; sys.exit(3)": "SystemExit: 3",
    "import nosuchpackage": "No module named 'nosuchpackage'",
    'return json.loads("{")': "JSONDecodeError",
}


@pytest.mark.parametrize("line", BUILDS)
@pytest.mark.parametrize("where", ["build", "load"])
def test_a_builder_that_fails_names_the_users_line(write, where: str, line: str) -> None:
    code = line if where == "build" else line.replace("return ", "x = ")
    body = f"def build():\n    {code}\n" if where == "build" else f"{code}\n"
    reference = write(f"import json\n{body}")
    with pytest.raises(IngestError) as error:
        resolve(reference)
    assert BUILDS[line] in str(error.value)
    assert line_of(reference, code) in str(error.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def build(): return 'hello'", "returned a str; it must return an nn.Module"),
        ("def build(): return None", "returned None; it must"),
        ("def build(): return ('a', 'b')", "returned a tuple"),
        ("async def build(): return Net()", "returned a coroutine"),
        ("def build(width): return Net(width)", "missing 1 required positional argument: 'width'"),
        ("build = 3", "is of type int, not a function"),
        ("def build(): return torch.jit.script(Net()), torch.zeros(2, 32)", "ScriptModule"),
        (
            "def build(): return nn.Sequential(Net(), nn.Flatten(0)), torch.zeros(2, 33)",
            "its forward pass failed",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*jit.script.*")
def test_what_a_builder_must_not_do(write, body: str, said: str) -> None:
    with pytest.raises(IngestError, match=said):
        resolve(write(body))


def test_an_op_that_fails_is_said_in_a_line_alone(write, caplog) -> None:
    body = """
        class Joined(Net):
            def forward(self, x):
                return torch.cat((super().forward(x), x[:1]), 1)
        def build(): return Joined(), torch.zeros(4, 32)
        """
    with pytest.raises(IngestError, match="Sizes of tensors must match"):
        resolve(write(body))
    assert caplog.records == []


def test_an_output_without_a_loss_names_the_model(write) -> None:
    body = """
        class Arg(Net):
            def forward(self, x):
                return super().forward(x).argmax(-1)
        def build(): return Arg(), torch.zeros(4, 32)
        """
    reference = write(body)
    with pytest.raises(IngestError, match="no floating-point tensor") as error:
        resolve(reference)
    assert reference in str(error.value)


def test_syntax_errors_name_file_and_line(write, tmp_path) -> None:
    reference = write("def build(:\n    pass")
    with pytest.raises(IngestError, match="SyntaxError") as error:
        resolve(reference)
    assert line_of(reference, "def build(:") in str(error.value)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(IngestError, match=r"binary\.py:build"):
        resolve("binary.py:build")


def test_missing_functions_files_and_modules(write, tmp_path) -> None:
    reference = write("def create(): return Net()", "creat")
    with pytest.raises(UnknownNameError, match="did you mean create"):
        resolve(reference)
    with pytest.raises(InputFileError, match="no such file"):
        resolve("nosuch.py:build")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InputFileError, match="is a folder"):
        resolve("folder.py:build")
    with pytest.raises(IngestError, match="no module 'nosuch' here"):
        resolve("nosuch.module:build")


def test_neighbours_and_packages_can_be_imported(write, tmp_path) -> None:
    (tmp_path / "sizes.py").write_text("WIDTH = 32")
    body = "from {0} import WIDTH\ndef build(): return Net(WIDTH), torch.zeros(2, WIDTH)"
    assert resolve(write(body.format("sizes"))).parameter_count == PARAMETERS
    reference = write(body.format(".sizes"), name="cnnpackage/inner/net.py")
    for folder in ("cnnpackage", "cnnpackage/inner"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "cnnpackage/inner/sizes.py").write_text("WIDTH = 32")
    assert resolve(reference).parameter_count == PARAMETERS
    graph = resolve("cnnpackage.inner.net:build")
    assert (graph.parameter_count, graph.name) == (PARAMETERS, "net")


def test_a_scan_over_the_sequence_is_traced_at_the_length_asked_for(write) -> None:
    body = """
        class Scan(Net):
            def forward(self, x):
                for step in range(x.shape[1]):
                    last = super().forward(x[:, step])
                return last
        def build(batch, seq): return Scan(), torch.zeros(batch, seq, 32)
        """
    reference = write(body)
    assert resolve(reference).seq == 512
    graph = resolve(reference, seq=9)
    assert (graph.seq, graph.fixed) == (9, ("seq",))
    assert "the sequence length is held at 9: other lengths run other ops" in graph.notes
    assert flops_per_sample(graph) == 9 * FLOPS


LOOKS = {
    "k = x.sum().item()": (),
    "x = x if x.sum() > 9**9 else -x": (),
    "x = x[torch.nonzero(x[:, 0] < 9**9).flatten()]": (),
    "x = x[x[:, 0] > 0]": ("batch",),
    "x = x if torch.rand(1).item() > 2 else -x": (),
    "x = torch.tensor(x.tolist(), dtype=x.dtype)": (),
}


@pytest.mark.parametrize("line", LOOKS)
def test_a_forward_that_looks_at_values_is_traced_with_random_ones(write, line: str) -> None:
    graph = resolve(write(FORWARD.replace("{line}", line)))
    assert any("random data" in note for note in graph.notes)
    assert graph.fixed == LOOKS[line]
    assert [op.kind for op in graph.ops].count("linear") == 1


def test_example_values_are_used_where_values_are_looked_at(write) -> None:
    body = """
        class Packed(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.out = nn.GRU(32, 16, batch_first=True), nn.Linear(16, 4)
            def forward(self, x, lengths):
                pack = nn.utils.rnn.pack_padded_sequence
                rows = pack(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
                return self.out(self.rnn(rows)[1][-1])
        def build(): return Packed(), (torch.zeros(2, 8, 32), torch.tensor([8, 6]))
        """
    found = predict(write(body), batch=4)
    # 3 gates of 16 from 32 and 16 inputs, at each of the positions that are not padding; then a
    # linear layer of 16 to 4.
    positions = 8 + 6 + 8 + 6
    assert found.step.flops[0] == 2 * 3 * 16 * (32 + 16) * positions + 4 * 2 * 16 * 4


def test_a_batch_that_shapes_the_ops_is_held(write) -> None:
    body = """
        class Each(Net):
            def forward(self, x):
                return torch.stack([super(Each, self).forward(row) for row in x])
        def build(): return Each(), torch.zeros(4, 32)
        """
    reference = write(body)
    for batch in (7, 4, None):
        graph = resolve(reference, batch=batch)
        assert (graph.batch, graph.fixed) == (batch or 32, ("batch",))
        assert f"the batch is held at {graph.batch}: other sizes run other ops" in graph.notes
        assert predict(reference, batch=batch).step.flops[0] == (batch or 32) * FLOPS
    with pytest.raises(InvalidValueError, match="give a batch, and the prediction says"):
        predict(reference, batch="max")


def test_a_cache_that_the_first_pass_fills_is_not_traced(write) -> None:
    body = """
        class Caches(Net):
            table = None
            def forward(self, x):
                if self.table is None:
                    self.table = torch.arange(32).cos()
                return super().forward(x * self.table.to(x.dtype))
        def build(): return Caches(), torch.zeros(4, 32)
        """
    graph = resolve(write(body))
    assert graph.fixed == ()
    assert "cos" not in {op.attrs.get("fn") for op in graph.ops}


def test_lazy_and_compiled_modules(write) -> None:
    body = """
        def lazy(): return nn.Sequential(nn.LazyLinear(10)), torch.zeros(2, 32)
        def compiled(): return torch.compile(Net()), torch.zeros(2, 32)
        """
    for function in ("lazy", "compiled"):
        assert flops_per_sample(resolve(write(body, function))) == FLOPS


def test_torch_is_named_where_it_is_missing(write, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "traincast.ingest.pytorch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'traincast\[torch\]'"):
        resolve(write("def build(): return Net()"))
