"""Pictures with axes, drawn by matplotlib (the extra [plot]) from data that needs nothing else.

What a page shows too (the callgraph, a roofline) is SVG that we write ourselves, and resvg makes PNGs of it.
"""
