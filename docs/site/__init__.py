"""The documentation as a site: pages that the program writes itself, and what MkDocs asks for while it builds."""
