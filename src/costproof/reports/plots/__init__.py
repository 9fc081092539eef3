"""Draw charts with matplotlib (extra [plot]) from data that can be prepared without it.

Pictures that pages show too (callgraphs, rooflines) are SVG that we write ourselves; resvg makes PNGs of them.
"""
