"""Draw charts with matplotlib (extra [plot]) from data that can be prepared without it.

What a page shows too (the callgraph, a roofline) is SVG that we write ourselves, and resvg makes PNGs of it.
"""
