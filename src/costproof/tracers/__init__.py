"""Sources of graphs and counts that need torch: exports, traces, dispatcher modes, profilers and counters."""
