"""What is refused, and how the message helps."""

import pytest
from paleo_nets import CONVERTED, conv, data, plain

from traincast.errors import InputFileError, InvalidValueError, UnknownNameError
from traincast.estimate.paleo import PaleoModel, layer_net, sweep, training_total


def one_layer(**layers):
    return {"name": "net", "layers": {"data": data(4, 32, 32, 3), **layers}}


def refused(error, *parts):
    """Expect an error whose message holds all parts in order."""
    return pytest.raises(error, match=r"[\s\S]*".join(parts))


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_workers_have_to_be_a_whole_number(workers):
    with refused(InvalidValueError, "workers = ", "at least 1"):
        PaleoModel().step("nin", "k40", 32, workers)
    with refused(InvalidValueError, "workers = ", "at least 1"):
        sweep(PaleoModel(), "nin", "k40", workers=(1, workers))


@pytest.mark.parametrize("batch", [0, -4, 2.5])
def test_a_batch_has_to_be_a_whole_number(batch):
    with refused(InvalidValueError, "batch = ", "at least 1"):
        PaleoModel().step("nin", "k40", batch)
    with refused(InvalidValueError, "batch = ", "at least 1"):
        PaleoModel().layers("nin", "k40", batch)


def test_strong_scaling_that_does_not_divide_is_refused_only_when_strict():
    def step(batch, workers, strict):
        return PaleoModel().step("nin", "k40", batch, workers, scaling="strong", strict=strict)

    assert step(100, 8, strict=False).worker_batch == 13
    assert step(4, 8, strict=False).worker_batch == 1
    with refused(InvalidValueError, "batch 100 is not divisible by 8 workers", "batch of 104"):
        step(100, 8, strict=True)
    with refused(InvalidValueError, "batch 4 is less than 8 workers", "batch of 8"):
        step(4, 8, strict=True)
    with refused(InvalidValueError, "batch 4 is less than 8 workers"):
        sweep(
            PaleoModel(), "nin", "k40", workers=(8,), batches=(4,), scalings=("strong",),
            strict=True,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"device": "k41"}, ("device 'k41'", "k4")),
        ({"device": "titanx2"}, ("device 'titanx2'", "titan-x")),
        ({"network": "etherne"}, ("network 'etherne'", "ethernet")),
        ({"scheme": "tre"}, ("scheme 'tre'", "tree")),
        ({"scaling": "strng"}, ("scaling 'strng'", "strong")),
        ({"strategy": "hybird"}, ("strategy 'hybird'", "hybrid")),
        ({"net": "alexv2"}, ("network 'alexv2'", "alex_v2")),
    ],
)
def test_unknown_names_are_answered_with_near_ones(change, parts):
    with refused(UnknownNameError, "unknown", *parts):
        PaleoModel().step(**{"net": "nin", "device": "k40"} | change)


def test_unknown_settings_of_the_model():
    with refused(UnknownNameError, "rule set 'papers'", "paper"):
        PaleoModel(rules="papers")
    with refused(UnknownNameError, "software 'tensorflw'", "tensorflow"):
        PaleoModel.for_software("tensorflw")
    with refused(UnknownNameError, "fetch 'mem'", "memory"):
        PaleoModel(fetch="mem")
    with refused(UnknownNameError, "strategy 'dta'", "data"):
        sweep(PaleoModel(), "nin", "k40", strategies=("dta",))


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan")])
def test_a_percent_of_peak_is_a_share(share):
    with refused(InvalidValueError, "ppp_compute", "above 0 and at most 1"):
        PaleoModel(ppp_compute=share)
    with refused(InvalidValueError, "ppp_comm", "above 0 and at most 1"):
        PaleoModel(ppp_comm=share)


def test_same_padding_with_a_stride_is_refused_under_the_paper_rules():
    net = one_layer(first=conv("data", 3, 8), half=conv("first", 7, 8, 2))
    with refused(InvalidValueError, "'half'", "SAME", "stride 2", 'rules="head"', r"\(here 2\)"):
        PaleoModel().step(net, "k40")
    assert PaleoModel(rules="head").step(net, "k40").total_s > 0
    numbers = one_layer(first=conv("data", 3, 8), half=conv("first", 7, 8, 2, [2, 2]))
    assert PaleoModel().step(numbers, "k40").total_s > 0


def test_same_padding_with_an_even_kernel_is_refused_under_the_paper_rules():
    net = one_layer(even=conv("data", 4, 8))
    with refused(InvalidValueError, "'even'", "even length 4", 'rules="head"'):
        PaleoModel().step(net, "k40")
    assert PaleoModel(rules="head").step(net, "k40").total_s > 0


def test_layers_that_only_head_knows():
    with refused(InvalidValueError, "'res2a'", "Elementwise", 'rules="head"'):
        PaleoModel().step(CONVERTED["resnet50"], "k40", 8)
    dense = one_layer(fc=plain("InnerProduct", "data", num_outputs=10))
    with refused(InvalidValueError, "'fc'", "InnerProduct", 'rules="head"', "1×1 convolution"):
        PaleoModel().step(dense, "k40", 8)


def test_a_dense_layer_costs_what_a_convolution_of_one_value_costs():
    shape = {"data": data(4, 1, 1, 300)}
    head = PaleoModel(rules="head")
    dense = {"name": "a", "layers": shape | {"fc": plain("InnerProduct", "data", num_outputs=10)}}
    first = plain("Dropout", "data", dropout_keep_prob=0.5)
    filters = {"name": "b", "layers": shape | {"drop": first, "fc": conv("drop", 1, 10)}}
    a, b = (head.layers(net, "k40", 64)[-1] for net in (dense, filters))
    assert a[2:] == pytest.approx(b[2:])


def test_faults_of_a_file_are_reported_by_layer():
    with refused(InputFileError, "'a'", "'nowhere', which is not there"):
        layer_net(one_layer(a=conv("nowhere", 3, 8)))
    with refused(InputFileError, "cycle"):
        layer_net(one_layer(a=conv("b", 3, 8), b=conv("a", 3, 8)))
    wrong = conv("data", 3, 8) | {"filter": [3, 3, 4, 8]}
    with refused(InputFileError, "'a'", "takes 4 channels, its input has 3"):
        layer_net(one_layer(a=wrong))
    with refused(InvalidValueError, "is no network"):
        layer_net(7)


def test_choices_of_cudnn_4_are_known_for_two_networks_and_powers_of_two():
    model = PaleoModel(algorithms="cudnn4")
    with refused(InvalidValueError, "nin and alex_v2, not for 'vgg16'"):
        model.step("vgg16", "k40", 64)
    with refused(InvalidValueError, "1, 2, 4, 8", "not for 48"):
        model.step("nin", "k40", 48)


@pytest.mark.parametrize(
    ("table", "error", "parts"),
    [
        ("heuristics", UnknownNameError, ("cannot be asked", "cudnn4")),
        ("gem", UnknownNameError, ("algorithm 'gem'", "gemm")),
        ({"conv2": "WINOGRAD"}, InvalidValueError, ("'conv2'", "no cost of WINOGRAD")),
        ({"conv2": "FFTT"}, InvalidValueError, ("'conv2'", "FFTT is unknown", "FFT_TILING")),
        ({"conv2": ("GEMM", "GEMM", "FFT_TILING")}, InvalidValueError, ("filter", "FFT")),
        ({"conv2": ("GEMM", "FFT")}, InvalidValueError, ("2 algorithms", "one, or three")),
    ],
)
def test_algorithms_that_cannot_be_used(table, error, parts):
    with refused(error, *parts):
        PaleoModel(algorithms=table)


def test_a_table_has_to_fit_the_network():
    with refused(UnknownNameError, "'conv22'", "conv2"):
        PaleoModel(algorithms={"conv22": "FFT"}).step("nin", "k40", 8)
    with refused(UnknownNameError, "convolution 'pool2'"):
        PaleoModel(algorithms={"pool2": "FFT"}).step("nin", "k40", 8)
    with refused(InvalidValueError, "no entry of layer 'conv2' for batch 8", "'conv2', 8"):
        PaleoModel(algorithms={("conv2", 16): "FFT"}).step("nin", "k40", 8)


def test_splits_have_to_match_the_workers():
    with refused(InvalidValueError, "split over 4 devices, workers = 2", "workers = 4"):
        PaleoModel().step("alex_v2_4gpu", "k20", 128, 2, strategy="hybrid")
    with refused(InvalidValueError, "4 branches or splits", "workers = 3"):
        PaleoModel().step("alex_v2_4gpu", "k20", 128, 3, strategy="model")
    nets = {1: "alex_v2_1gpu", 2: "alex_v2_2gpu"}
    with refused(InvalidValueError, "hybrid", "split for 4 workers", "key 4"):
        sweep(PaleoModel(), nets, "k20", workers=(2, 4), strategies=("hybrid",))


def test_training_has_to_train_on_something():
    step = PaleoModel().step("nin", "k40", 8)
    with refused(InvalidValueError, "epochs = 0"):
        training_total(step, epochs=0)
    with refused(InvalidValueError, "dataset = -1"):
        training_total(step, dataset=-1)
