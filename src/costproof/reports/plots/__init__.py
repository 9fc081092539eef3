"""Draw charts with matplotlib (extra [plot]), from data that need nothing else.

Pictures that pages show too (callgraphs, rooflines) are SVG that we write ourselves; resvg makes PNGs of them.
"""
