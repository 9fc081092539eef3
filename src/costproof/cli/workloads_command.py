"""``costproof workloads``: the named workloads."""

from __future__ import annotations

import click


@click.command()
def workloads() -> int:
    """List the named workloads with the tokens that they make."""
    from costproof.ledger.errors import EXIT_OK
    from costproof.models.deepseek_ocr.page import vision_tokens
    from costproof.models.deepseek_ocr.presets import DEFAULT_PRESET, PRESETS

    width = max(map(len, PRESETS))
    click.echo(f"{'name':<{width}}  vision   text  meaning")
    for name, preset in PRESETS.items():
        vision = vision_tokens(preset.page)
        mark = " (the default)" if name == DEFAULT_PRESET else ""
        click.echo(f"{name:<{width}}  {vision:>6}  {preset.text_tokens:>5}  {preset.what}{mark}")
    click.echo(
        "\nEvery setting can be changed: --base-size, --image-size, --grid, --text-tokens, --new-tokens, --batch, ..."
    )
    return EXIT_OK
