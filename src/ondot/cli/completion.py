"""`ondot completion`: the script by which bash, zsh or fish asks `ondot` for completions (D5).

Completions are read as lines and passed on as values. No script evaluates them: names of jobs are text of others.
"""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

BASH: Final = r"""_ondot() {
    local value
    COMPREPLY=()
    while IFS= read -r value; do
        COMPREPLY+=("$value")
    done < <(_ONDOT_COMPLETE=bash "$1" "${COMP_LINE:0:COMP_POINT}" "$1" "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null)
}
complete -o default -F _ondot ondot
"""
ZSH: Final = r"""#compdef ondot
_ondot() {
    local -a values lines
    local value about
    while IFS=$'\t' read -r value about; do
        values+=("$value")
        lines+=("$value${about:+  -- $about}")
    done < <(_ONDOT_COMPLETE=zsh "${(Q)words[1]}" "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( $#values )); then
        compadd -l -d lines -a values
    else
        _files
    fi
}
if [[ "${funcstack[1]-}" == _ondot ]]; then
    _ondot "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _ondot ondot
fi
"""
FISH: Final = r"""function __ondot_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    test -n "$current[1]"; or set current ""
    _ONDOT_COMPLETE=fish $words[1] $words[2..-1] $current 2>/dev/null
end
complete -c ondot -f -a '(__ondot_complete)'
"""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS: Final = {Shell.BASH: BASH, Shell.ZSH: ZSH, Shell.FISH: FISH}


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script for completion in a shell. In bash: source <(ondot completion bash)"""
    sys.stdout.write(SCRIPTS[shell])
