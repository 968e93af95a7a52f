"""The commands of `brim llm`: ask a model about every row of a file, check and measure servers, run one."""
