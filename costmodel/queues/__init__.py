"""Waiting: Erlang's laws, prompts that queue, decodes that share a batch, and requests that circulate."""
