"""Count and measure models with torch: exports, traces, dispatch modes, profilers and third-party counters."""
