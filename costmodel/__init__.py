"""Time, memory and queues of LLM serving: pure functions of hardware, model and load, in SI units."""
