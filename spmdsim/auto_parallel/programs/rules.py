"""The rules of the operators that the built-in programs are made of."""

from __future__ import annotations

from spmdsim.core import FUNCTIONS, PASSES, Rule

ADD = Rule.parse("..., ... -> ...", linear="all")
MULTIPLY = Rule.parse("..., ... -> ...", linear="each")
POINTWISE = Rule.parse("... -> ...")
FUNCTION = Rule.parse("... -> ...", work=FUNCTIONS)
GELU = Rule.parse("... -> ...", work=PASSES, backward=3)
BIAS = Rule.parse("... n, n -> ... n", linear="all")
MATMUL = Rule.parse("... k, k n -> ... n", linear="each")
NORM = Rule.parse("... h, h, h -> ... h", whole="h", work=PASSES, backward=3)
SOFTMAX = Rule.parse("... k -> ... k", whole="k", work=PASSES)
LOOKUP = Rule.parse("v h, b s -> b s h", indexed="v")
SELECT = Rule.parse("b s t n d -> b s n d", whole="t", linear="all")
SQUARED_ERROR = Rule.parse("b n, b n -> ", linear="none")
TOTAL = Rule.parse("b s -> ", linear="all")
ROW_MAX = Rule.parse("b s v -> b s", reduce="max")
ROW_SUM = Rule.parse("b s v -> b s", linear="all")
ROW_PICK = Rule.parse("b s v, b s -> b s", linear=[[0]])
ROW_SUBTRACT = Rule.parse("b s v, b s -> b s v", linear="all")
FLATTEN = Rule.parse("b c h w -> b (c h w)", linear="all")
CONVOLUTION = Rule.parse("n c h w, o c p q -> n o h w", whole="h w p q", linear="each")
DEPTHWISE = Rule.parse("n c h w, c p q -> n c h w", whole="h w p q", linear="each")
ROUTE = Rule.parse("g s e -> g s e c", whole="s e c")
ERROR_3D = Rule.parse("b s h, b s h -> ")
ERROR_4D = Rule.parse("n c h w, n c h w -> ")
DIFFERENCE = Rule.parse(", -> ", linear="all")
