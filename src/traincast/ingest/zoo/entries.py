"""What the zoo holds: each network's source, publication, size and usual batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A built-in network."""

    title: str
    """What people call it."""
    family: str
    """convolutional, transformer, recurrent, recommendation or mnist."""
    source: str
    """What its graph is made from: torchvision:NAME, transformers:CLASS, paleo:NAME, or a
    function as package.module:FUNCTION."""
    citation: str
    """The publication."""
    parameters: int
    """Published number of parameters, tied weights once."""
    batch: int
    """Batch to assume when none is given; samples."""
    seq: int = 0
    """Sequence length to assume when none is given; tokens, 0 where there is none."""
    image: int = 0
    """Side of the square input image; pixels, 0 where there is none."""
    notes: tuple[str, ...] = ()
    """What a reader of a prediction should know."""


def _vision(
    name: str, title: str, citation: str, parameters: int, image: int = 224, options: str = ""
) -> tuple[str, Entry]:
    family = "transformer" if name.startswith(("vit", "swin", "maxvit")) else "convolutional"
    return name, Entry(
        title=title,
        family=family,
        source=f"torchvision:{name}{options}",
        citation=citation,
        parameters=parameters,
        batch=32,
        image=image,
    )


def _text(
    name: str,
    title: str,
    class_name: str,
    citation: str,
    parameters: int,
    batch: int,
    seq: int,
    *notes: str,
) -> tuple[str, Entry]:
    return name, Entry(
        title=title,
        family="transformer",
        source=f"transformers:{class_name}",
        citation=citation,
        parameters=parameters,
        batch=batch,
        seq=seq,
        notes=notes,
    )


def _paleo(name: str, title: str, citation: str, parameters: int, image: int) -> tuple[str, Entry]:
    return name, Entry(
        title=title,
        family="convolutional",
        source=f"paleo:{name}",
        citation=f"{citation}; as specified by Qi, Sparks & Talwalkar 2017 (Paleo, ICLR)",
        parameters=parameters,
        batch=128,
        image=image,
    )


def _own(
    name: str,
    title: str,
    family: str,
    citation: str,
    parameters: int,
    batch: int,
    *,
    seq: int = 0,
    image: int = 0,
    notes: tuple[str, ...] = (),
) -> tuple[str, Entry]:
    return name, Entry(
        title=title,
        family=family,
        source=f"traincast.ingest.zoo.modules:{name.replace('-', '_')}",
        citation=citation,
        parameters=parameters,
        batch=batch,
        seq=seq,
        image=image,
        notes=notes,
    )


_ALEX = "Krizhevsky 2014, One weird trick for parallelizing convolutional networks, arXiv 1404.5997"
_VGG = "Simonyan & Zisserman 2015, Very deep convolutional networks, ICLR, arXiv 1409.1556"
_RESNET = "He et al. 2016, Deep residual learning for image recognition, CVPR, arXiv 1512.03385"
_MOBILENET_3 = "Howard et al. 2019, Searching for MobileNetV3, ICCV, arXiv 1905.02244"
_EFFICIENTNET = "Tan & Le 2019, EfficientNet, ICML, arXiv 1905.11946"
_SQUEEZENET = "Iandola et al. 2016, SqueezeNet, arXiv 1602.07360"
_REGNET = "Radosavovic et al. 2020, Designing network design spaces, CVPR, arXiv 2003.13678"
_CONVNEXT = "Liu et al. 2022, A ConvNet for the 2020s, CVPR, arXiv 2201.03545"
_SWIN = "Liu et al. 2021, Swin Transformer, ICCV, arXiv 2103.14030"
_VIT = "Dosovitskiy et al. 2021, An image is worth 16x16 words, ICLR, arXiv 2010.11929"
_BERT = "Devlin et al. 2019, BERT, NAACL, arXiv 1810.04805"
_GPT2 = "Radford et al. 2019, Language models are unsupervised multitask learners, OpenAI"
_T5 = (
    "Raffel et al. 2020, Exploring the limits of transfer learning with T5, JMLR, arXiv 1910.10683"
)
_LLAMA = "Grattafiori et al. 2024, The Llama 3 herd of models, arXiv 2407.21783"
_LLAMA_32 = "Meta 2024, Llama 3.2 model card; architecture of arXiv 2407.21783"
_VIEBKE = (
    "Viebke et al. 2019, Performance modelling of deep learning on Intel many integrated core "
    "architectures, HPCS, arXiv 1906.01992"
)
_SEQ2SEQ = "the sequence length is that of the encoder and of the decoder"

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    dict(
        [
            _vision("alexnet", "AlexNet", _ALEX, 61_100_840),
            _vision("vgg11", "VGG-11", _VGG, 132_863_336),
            _vision("vgg16", "VGG-16", _VGG, 138_357_544),
            _vision("vgg19", "VGG-19", _VGG, 143_667_240),
            _vision(
                "googlenet",
                "GoogLeNet, without auxiliary classifiers",
                "Szegedy et al. 2015, Going deeper with convolutions, CVPR, arXiv 1409.4842",
                6_624_904,
                options="?aux_logits=false",
            ),
            _vision(
                "inception_v3",
                "Inception v3, with its auxiliary classifier",
                "Szegedy et al. 2016, Rethinking the Inception architecture for computer vision, "
                "CVPR, arXiv 1512.00567",
                27_161_264,
                299,
            ),
            _vision("resnet18", "ResNet-18", _RESNET, 11_689_512),
            _vision("resnet34", "ResNet-34", _RESNET, 21_797_672),
            _vision("resnet50", "ResNet-50", _RESNET, 25_557_032),
            _vision("resnet101", "ResNet-101", _RESNET, 44_549_160),
            _vision("resnet152", "ResNet-152", _RESNET, 60_192_808),
            _vision(
                "resnext50_32x4d",
                "ResNeXt-50 32×4d",
                "Xie et al. 2017, Aggregated residual transformations, CVPR, arXiv 1611.05431",
                25_028_904,
            ),
            _vision(
                "wide_resnet50_2",
                "Wide ResNet-50-2",
                "Zagoruyko & Komodakis 2016, Wide residual networks, BMVC, arXiv 1605.07146",
                68_883_240,
            ),
            _vision(
                "densenet121",
                "DenseNet-121",
                "Huang et al. 2017, Densely connected convolutional networks, CVPR, "
                "arXiv 1608.06993",
                7_978_856,
            ),
            _vision(
                "mobilenet_v2",
                "MobileNet v2",
                "Sandler et al. 2018, MobileNetV2, CVPR, arXiv 1801.04381",
                3_504_872,
            ),
            _vision("mobilenet_v3_small", "MobileNet v3 small", _MOBILENET_3, 2_542_856),
            _vision("mobilenet_v3_large", "MobileNet v3 large", _MOBILENET_3, 5_483_032),
            _vision("efficientnet_b0", "EfficientNet-B0", _EFFICIENTNET, 5_288_548),
            _vision("efficientnet_b4", "EfficientNet-B4", _EFFICIENTNET, 19_341_616, 380),
            _vision("squeezenet1_0", "SqueezeNet 1.0", _SQUEEZENET, 1_248_424),
            _vision("squeezenet1_1", "SqueezeNet 1.1", _SQUEEZENET, 1_235_496),
            _vision(
                "shufflenet_v2_x1_0",
                "ShuffleNet v2 1.0×",
                "Ma et al. 2018, ShuffleNet V2, ECCV, arXiv 1807.11164",
                2_278_604,
            ),
            _vision(
                "mnasnet1_0",
                "MNASNet 1.0",
                "Tan et al. 2019, MnasNet, CVPR, arXiv 1807.11626",
                4_383_312,
            ),
            _vision("regnet_y_400mf", "RegNetY-400MF", _REGNET, 4_344_144),
            _vision("regnet_y_8gf", "RegNetY-8GF", _REGNET, 39_381_472),
            _vision("convnext_tiny", "ConvNeXt-T", _CONVNEXT, 28_589_128),
            _vision("convnext_base", "ConvNeXt-B", _CONVNEXT, 88_591_464),
            _vision("swin_t", "Swin-T", _SWIN, 28_288_354),
            _vision("swin_b", "Swin-B", _SWIN, 87_768_224),
            _vision("vit_b_16", "ViT-B/16", _VIT, 86_567_656),
            _vision("vit_l_16", "ViT-L/16", _VIT, 304_326_632),
            _vision(
                "maxvit_t",
                "MaxViT-T",
                "Tu et al. 2022, MaxViT, ECCV, arXiv 2204.01697",
                30_919_624,
            ),
            _paleo("alex_v2", "AlexNet v2, one tower", _ALEX, 50_303_912, 224),
            _paleo(
                "nin",
                "Network in network",
                "Lin, Chen & Yan 2014, Network in network, ICLR, arXiv 1312.4400",
                7_595_176,
                224,
            ),
            _paleo(
                "overfeat",
                "OverFeat, fast model",
                "Sermanet et al. 2014, OverFeat, ICLR, arXiv 1312.6229",
                145_704_424,
                231,
            ),
            _own(
                "unet",
                "U-Net, padded, one grey channel to two classes",
                "convolutional",
                "Ronneberger, Fischer & Brox 2015, U-Net, MICCAI, arXiv 1505.04597",
                31_030_658,
                1,
                image=512,
                notes=("convolutions are padded by 1; the paper crops instead",),
            ),
            _text(
                "bert-base", "BERT base, uncased", "BertForMaskedLM", _BERT, 109_514_298, 32, 512
            ),
            _text(
                "bert-large", "BERT large, uncased", "BertForMaskedLM", _BERT, 335_174_458, 8, 512
            ),
            _text("gpt2", "GPT-2", "GPT2LMHeadModel", _GPT2, 124_439_808, 8, 1024),
            _text("gpt2-medium", "GPT-2 medium", "GPT2LMHeadModel", _GPT2, 354_823_168, 8, 1024),
            _text("gpt2-large", "GPT-2 large", "GPT2LMHeadModel", _GPT2, 774_030_080, 4, 1024),
            _text("gpt2-xl", "GPT-2 XL", "GPT2LMHeadModel", _GPT2, 1_557_611_200, 4, 1024),
            _text(
                "t5-small",
                "T5 small, version 1.0",
                "T5ForConditionalGeneration",
                _T5,
                60_506_624,
                32,
                512,
                _SEQ2SEQ,
            ),
            _text(
                "t5-base",
                "T5 base, version 1.0",
                "T5ForConditionalGeneration",
                _T5,
                222_903_552,
                16,
                512,
                _SEQ2SEQ,
            ),
            _text(
                "llama-3.2-1b",
                "Llama 3.2 1B",
                "LlamaForCausalLM",
                _LLAMA_32,
                1_235_814_400,
                1,
                8192,
            ),
            _text(
                "llama-3.2-3b",
                "Llama 3.2 3B",
                "LlamaForCausalLM",
                _LLAMA_32,
                3_212_749_824,
                1,
                8192,
            ),
            _text(
                "llama-3.1-8b", "Llama 3.1 8B", "LlamaForCausalLM", _LLAMA, 8_030_261_248, 1, 8192
            ),
            _text(
                "llama-3.1-70b",
                "Llama 3.1 70B",
                "LlamaForCausalLM",
                _LLAMA,
                70_553_706_496,
                1,
                8192,
            ),
            _text(
                "llama-3.1-405b",
                "Llama 3.1 405B",
                "LlamaForCausalLM",
                _LLAMA,
                405_853_388_800,
                1,
                8192,
            ),
            _text(
                "mixtral-8x7b",
                "Mixtral 8x7B",
                "MixtralForCausalLM",
                "Jiang et al. 2024, Mixtral of experts, arXiv 2401.04088",
                46_702_792_704,
                1,
                4096,
            ),
            _own(
                "lstm-ptb",
                "LSTM language model, medium, Penn Treebank",
                "recurrent",
                "Zaremba, Sutskever & Vinyals 2014, Recurrent neural network regularization, "
                "arXiv 1409.2329",
                19_780_400,
                20,
                seq=35,
            ),
            _own(
                "dlrm",
                "DLRM, Criteo Kaggle configuration",
                "recommendation",
                "Naumov et al. 2019, Deep learning recommendation model, arXiv 1906.00091",
                540_677_217,
                128,
            ),
            _own(
                "lenet5",
                "LeNet-5, as commonly implemented, 32×32",
                "mnist",
                "LeCun et al. 1998, Gradient-based learning applied to document recognition, "
                "Proc. IEEE 86(11)",
                61_706,
                32,
                image=32,
            ),
            _own("mnist-small", "MNIST CNN, small", "mnist", _VIEBKE, 6_405, 32, image=29),
            _own("mnist-medium", "MNIST CNN, medium", "mnist", _VIEBKE, 76_040, 32, image=29),
            _own("mnist-large", "MNIST CNN, large", "mnist", _VIEBKE, 383_160, 32, image=29),
        ]
    )
)
"""Name to network, in the order in which they are listed."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "bert": "bert-base",
        "gpt2-small": "gpt2",
        "lenet": "lenet5",
        "llama-1b": "llama-3.2-1b",
        "llama-3b": "llama-3.2-3b",
        "llama-8b": "llama-3.1-8b",
        "llama-70b": "llama-3.1-70b",
        "llama-405b": "llama-3.1-405b",
        "mixtral": "mixtral-8x7b",
    }
)
"""Shorter or other names that people use."""
