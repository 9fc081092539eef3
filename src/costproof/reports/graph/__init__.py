"""Draw callgraphs: modules grouped into families, written as DOT, SVG and Mermaid.

Three steps, each a pure function on one data model, :mod:`picture`: :mod:`grouping` finds families and repetition in
a callgraph, :mod:`view` picks what to show and adds the numbers of the ledgers, and :mod:`dot`, :mod:`svg`,
:mod:`mermaid` write it.
"""
