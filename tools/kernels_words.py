"""The words of docs/kernels.md."""

HEAD = """# Kernels: timed, and what is fitted on them

Made by `make kernels`, which fetches the timings, fits them ({fits} fits in seconds) and writes this page
and `src/kvplan/facts/efficiency/kernels.json` ({rows} rows).

## Whose timings

{package}, a package on the Python index, read {date}: timings of single kernels of vLLM, SGLang and
TensorRT-LLM, and of NCCL and oneCCL, on ten accelerators. The Apache licence 2.0 allows what is done here,
with attribution: the tables stay in their package, what is fitted on them ships with kvplan, and a test
keeps some rows of them, with the notice (`tests/data/kernel_timings.csv`).

## The form

Time of one kernel, in seconds:

    launch_seconds + moved × moved_bytes ÷ bandwidth + √(compute² + memory² + depth²)
    compute = (flops + pad × pad_flops) ÷ (peak × compute)
    memory  = bytes ÷ (bandwidth × memory) + tiles × tile_seconds
    depth   = steps × depth_seconds

`peak`, `bandwidth` and `link` are those of `facts/accelerators.json`; flops, bytes, tiles and steps are
counted from a row's shape as the planner counts them (`tools/kernels_read.py`). The root of squares lies
between a perfect overlap (the slower one alone) and none (the sum). `depth` is the reduction that one tile
walks however few tiles there are: without it a small product with a long inner dimension is told to be
free. `moved` are values that a pass of its own reads and writes, to quantise or to permute them. `pad` is
the softmax, as so many values of head width more, and among experts the rows that fill a tile up. `tile` is
what each cached head of each sequence costs beside its bytes.

A collective takes

    launch_seconds + rank_seconds × (ranks − 1) + wire ÷ (speed × link)
    speed = link bandwidth × (2 ÷ ranks) ^ share where ranks share a bus, else the link bandwidth

and an all-reduce the quicker of that with `ring_seconds` added, and `wire × ranks ÷ 2 ÷ (speed ×
one_shot)`: every rank reading what all the others hold.

Fitted on as many rows of each half-decade of time (at most 400), by the logarithm of predicted over timed
with a loss that grows linearly beyond 15 %, no share of peak or bandwidth above 1. Of an engine's
versions the newest that timed at least a twentieth of the rows of the widest counts, of its kernels the
most used. Left out are rows that no memory could serve (the benchmark left its operands in L2), products
under 256 wide, windowed decodes, more than 16 query heads a cached head, and experts whose tokens are not
spread evenly.

kernels.json has one row an accelerator, operation and format: the fit of the engine that is the quickest on
all engines' timings, as they take over one another's kernels before long; a fit that misses a tenth of its
own timings by four fifths is passed over. How much an engine as served falls short of it is what
`facts/efficiency/serving.json` is fitted for. An accelerator without timings takes the median of its
generation, and failing that of all (`src/kvplan/facts/kernels.py`); such a figure counts as assumed.
"""

FAILS = {
    "merged": """The quickest engine's fit, on the timings of all engines; errors in per cent: each engine's
own fit on its own timings, and the shipped values on the timings of all; a negative bias is told faster
than timed, and `furthest` is the accelerator where it is most so.""",
    "poor": """Fits of which half the rows miss by more than 20 %, or a tenth by more than 60 %, worst
first; the region is the one that misses most, error and bias in per cent.

- Attention of prompts by generic Triton kernels, and on L40S and RTX PRO 6000: times there
  scatter about the form. Windowed prompts are told a quarter to a third too fast under Triton, as if the
  window's edge were walked in full tiles.
- Experts of more than 256 tokens: the share of the peak that a group of rows reaches depends on how many
  rows an expert gets, and one `pad` tells that poorly.
- All-reduces whose library switches method with the size and the number of ranks: the form has one switch.
  SGLang's on GB300 fits so poorly with four ranks that it is passed over.""",
    "bounds": """A figure on its bound is one that the timings do not tell, or that the form cannot. `pad` at
its least means that a softmax does not show; `depth_seconds` at its least that reductions do not; `compute`
at 1 that the operation never was compute-bound among the rows, or multiplies in a narrower format than its
table says; `launch_seconds` at its least that something else of the form took its place.""",
    "beside": """Nothing reads these: they are here to be compared with sums of the operations above.""",
}

SURPRISES = (
    "Most products launch in 2 to 7 µs; a fused layer of experts takes 15 to 60 µs before it does any work.",
    "Prompt attention in 16 bit reaches 64 % (A100) to 93 % (B200) of the peak under the best engine of "
    "a data-centre part; with an 8-bit cache and 16-bit arithmetic SGLang's Triton kernels reach 6 to 8 "
    "%, while TensorRT-LLM's, and vLLM's on Blackwell, end on the bound of the 16-bit peak, as if they "
    "multiplied in 8 bit.",
    "Quantising activations is a pass of its own that costs 2 to 17 B a value, more than reading and "
    "writing it.",
    "Half the bytes are not half the time: 16-bit caches are read at 85 to 94 % of an H100's or H200's "
    "bandwidth, 8-bit ones at 54 to 83 %. Data-centre Blackwell reads both at 90 to 98 %.",
    "NVLink's stated figure is never reached: 61 to 78 % by large all-reduces, 44 to 55 % by gathers "
    "and scatters.",
    "Over PCIe the speed falls with the ranks, and by how much is the host's affair: by the power 1.0 "
    "to 2.0 on the L40S machine, 0.2 to 0.3 on that of the RTX PRO 6000.",
    "Block-wise fp8 products under vLLM were timed outside CUDA graphs on five accelerators: none takes "
    "less than 83 to 304 µs, which is the host. They take launch and depth of the same engine's fp8 "
    "product, are fitted on what lasts twice as long, and `host µs` says what was seen.",
    "Merging costs most where engines lay the work out differently: expert kernels that pass over every "
    "token whoever owns its expert (Triton under SGLang and vLLM) cost `moved_bytes` that others do "
    "not, so that thousands of tokens over 64 ranks are told up to 14 times too fast on L40S.",
)

TABLE = """Errors in per cent: median, bias (positive: told slower than timed), 90th percentile, and by
region median/bias. Shares are of the stated peak, bandwidth and link; the row `shipped` is what
kernels.json has, its errors those on the timings of all engines."""

OPERATIONS = {
    "matmul": "A dense product of m rows with a k × n weight.",
    "experts": "Gated routed experts of one layer on one rank, tokens spread evenly.",
    "attention_prefill": "Causal attention of whole prompts; `fp8_math` multiplies in 8 bit too.",
    "attention_decode": "Attention of one new token a sequence over its cache.",
    "mla_prefill": "Latent attention of whole prompts, keys 192 and values 128 wide.",
    "mla_decode": "Absorbed latent attention over 576 cached values a token.",
    "state_decode": "A gated delta rule's step: a 32-bit state read and written.",
    "all_reduce": "The sum over ranks, of the engines' own kernels and of NCCL or oneCCL.",
    "all_gather": "Every rank's part to every rank.",
    "reduce_scatter": "The sum over ranks, a part to each.",
    "mla_bmm": "The per-head products around absorbed attention, 128 by 512.",
    "mla_module_prefill": "DeepSeek-V3's attention of one layer with its projections, prompts.",
    "mla_module_decode": "The same, decoding.",
    "state_prefill": "A gated delta rule over prompts, a chunk of 64 at a time.",
    "all_to_all": "A part of every rank to every other.",
    "moe_dispatch": "Tokens to their experts' ranks, by library and format.",
    "moe_combine": "What comes back from them, summed.",
}
