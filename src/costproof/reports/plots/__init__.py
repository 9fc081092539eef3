"""Pictures with axes, as files: a data half, which needs nothing, and a drawing half by matplotlib (the extra [plot]).

What a page shows too (the callgraph, a roofline) is SVG that we write ourselves, and resvg makes PNGs of it.
"""
