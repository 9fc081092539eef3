"""Complete words in bash, which splits ``deepseek-ocr@gundam`` and ``--over base=1`` into several."""

from __future__ import annotations

import os
from typing import Final

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_SOURCE: Final = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response

    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
%(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=($value)
            if [[ $value == *= ]]; then
                compopt -o nospace 2> /dev/null
            fi
        fi
    done

    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""


class _Bash(BashComplete):
    """Completion for bash that joins words which bash splits at ``@`` and ``=``, as the program receives them."""

    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(_line())
        last = words.pop() if words and not _line()[-1:].isspace() else ""
        return words[1:], last

    def format_completion(self, item: CompletionItem) -> str:
        _, last = self.get_completion_args()
        taken = max((last.rfind(mark) + 1 for mark in os.environ.get("COMP_BREAKS", "") if mark in "=:@"), default=0)
        value = item.value[taken:] if item.value.startswith(last[:taken]) else item.value
        return f"{item.type},{value}"


def _line() -> str:
    return os.environ.get("COMP_LINE", "")


add_completion_class(_Bash)
