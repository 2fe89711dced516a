"""Names that there are, as types: editors complete them. Made by 'make generated'."""

from typing import Literal

PolicyName = Literal[
    "first-touch",
    "interleave",
    "lru",
    "lfu",
    "random",
    "lists",
    "amp",
    "granularity",
    "granularity-4k",
    "granularity-64k",
    "granularity-2m",
    "physical-4k",
    "tpp",
    "memtis",
    "colloid",
    "optimum",
    "terrace",
]

WorkloadKind = Literal[
    "redis-zipf",
    "hotcold",
    "lru-favor",
    "lfu-favor",
    "random-favor",
    "zipf",
    "uniform",
    "scan",
    "mix",
    "program",
    "command",
    "attach",
    "recording",
    "profile",
]

MachineName = Literal[
    "nimble-xeon-e5-2650v3",
    "radiant-xeon-6252n-optane",
    "granularity-amd-a10-6800k",
    "amp-xeon-throttled-dram",
    "rack-node-ddr4-2400",
    "server-ddr5-cxl",
    "server-ddr5-cxl-timing",
]
