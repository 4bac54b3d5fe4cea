"""The model that `grad-histogram` is tried on, and what it prints of it."""

from __future__ import annotations

# The model of test_gradient_view.py, whose FP16 gradients at loss scale 1 are
#   2^-30;  2^-33, 2^-30, 2^-30, 2^-30;  twice 2^-16, 2^-26, 2^-30 and a zero that FP32 has too.
MODEL = """\
import torch
from torch import nn


def build_model():
    model = nn.Sequential(nn.Linear(1, 4, bias=False), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.125], [1.0], [1.0], [1.0]]))
        model[1].weight.copy_(torch.tensor([[2.0**14, 16.0, 1.0, 0.0]]))
    return model


def build_batch():
    return torch.ones(1, 1)


def compute_loss(model, batch):
    return model(batch).float().sum() * 2.0**-30


def compute_huge_loss(model, batch):
    return model(batch).float().sum() * 2.0**20


def compute_wide_loss(model, batch):
    with torch.autocast("cpu", enabled=False):
        return (model[0].weight * 2).sum()


def divide(model, batch):
    return (model(batch).float() * 0 / 0).sum()
"""


UNDERFLOW = """\
 UNDERFLOW at loss scale 32. At least 63.6 % of the gradient elements become
 zero; at 2^24 it is 0.0 %, and nothing overflows.

 Gradients at loss scale 32   11 elements of 4 tensors
  54.5 % ┤     █│           │                              │
         │     █│           │                              │
         │     █│           │                              │
         │     █│           │                              │
         │     █│           │                              │
         │     █│    ▅      │   ▅                          │
         │   ▃ █│    █      │   █                          │
         │   █ █│    █      │   █                          │
       0 └──────┴───────────┴──────────────────────────────┴────────
              2^-25       2^-14                         65,520
           zero   subnormal              normal             overflow

            becomes zero    subnormal     normal   overflow
 kept as               0   fewer bits   all bits        inf
 from                  0        2^-25      2^-14     65,520
 elements              7            2          2          0
 share            63.6 %       18.2 %     18.2 %      0.0 %

 Kept apart: 2 zeros that FP32 has too, 0 inf, 0 NaN.
 Read before rounding to FP16, from the run at loss scale 2^24, shifted.

 Layers                          0  subn.      normal      inf     zero    over
  top-level code                  █│      │               │     100.0 %       0
  1 Linear                       ▂█│  ▂   │ ▂             │      71.4 %       0
  0 Linear                        █│  █   │ █             │      33.3 %       0

 Most lost  1 Linear   backward of mm   4 of 4 become zero
            model.py:18   return model(batch).float().sum() * 2.0**-30
 Largest    1 Linear   backward of mm   4.9e-4, overflows from 2^32
            model.py:18   return model(batch).float().sum() * 2.0**-30
 Next       Use a loss scale of 2^24: 2^9 .. 2^30 work, proven by running it.
   ampdoctor grad-histogram scan.yaml --scale 2^24  # that scale
   ampdoctor grad-histogram scan.yaml --sweep  # every scale
"""


SWEEP = """\
 UNDERFLOW at loss scale 1. 100.0 % of the gradient elements become zero; at
 2^24 it is 0.0 %, and nothing overflows.

 Gradient elements that become zero in FP16, by loss scale
 100.0 % +##
         |####
         |############
         |############
         |############
         |############
         |##################
       0 +------------------------------------------------------------------
          2^0     2^4     2^8     2^12    2^16    2^20    2^24    2^28    2^32
 overflow                                                                 ##
 works                      |------------------------------------------|
          ^ shown                                         ^ use

 Run at   becomes zero   predicted
  2^0          100.0 %      81.8 %
  2^6            9.1 %       9.1 %
  2^7            9.1 %       9.1 %
  2^8            9.1 %       9.1 %
  2^9            0.0 %       0.0 %
  2^12           0.0 %       0.0 %
  2^24           0.0 %       0.0 %
  2^32       overflows   overflows

 Read before rounding to FP16, from the run at loss scale 2^24, shifted.
 At scales not run these are lower bounds: a zero made early spreads on its way
 back.
"""
