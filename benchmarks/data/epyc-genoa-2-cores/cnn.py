import torch
from torch import nn


def block(cin, cout):
    first, second = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(cout), nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2))


def cnn():
    head = nn.Sequential(nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10))
    blocks = (block(3, 32), block(32, 64), block(64, 128))
    return nn.Sequential(*blocks, head), torch.randn(8, 3, 32, 32)
