//! Completion scripts: those of clap, which know commands and flags, and for other words the hidden
//! command, which prints what a word may become.

use clap_complete::Shell;

/// Behind the script of clap, which knows commands and flags.
///
/// Outside of quotes, bash breaks words at colons and equals signs: the word is taken from the
/// line, and only what stands behind the last break is replaced.
const BASH: &str = r#"
_towpath_words() {
    _towpath "$@"
    local word=${COMP_LINE:0:COMP_POINT} command=${COMP_WORDS[1]} last words
    word=${word##*[[:space:]]}
    if [[ $COMP_CWORD -lt 2 || $word == -* ]]; then
        return
    fi
    last=${word##*[:=&@]}
    if [[ $word == [\"\']* ]]; then
        word=${word:1} last=$word
    fi
    mapfile -t words < <("$1" complete -- "$command" "$word" 2>/dev/null)
    if ((${#words[@]})); then
        COMPREPLY=("${words[@]#"${word%"$last"}"}")
        [[ $command == help ]] || compopt -o nospace
    elif [[ $word == *:* ]]; then
        COMPREPLY=()
    fi
}
complete -F _towpath_words -o bashdefault -o default towpath
"#;

/// The function that clap defines, for flags and for what is no port.
const ZSH_CLAP: &str = "\n_towpath() {\n";
/// In front of the last lines, which run or register `_towpath`.
const ZSH_END: &str = "\nif [ \"$funcstack[1]\" = \"_towpath\" ]; then";
/// What runs instead of clap's function. A word is whole: zsh does not break it at colons.
const ZSH: &str = r#"
_towpath() {
    local -a found
    if (( CURRENT > 2 )) && [[ $PREFIX != -* ]]; then
        found=("${(@f)$(towpath complete -- "${words[2]}" "${(Q)PREFIX}" 2>/dev/null)}")
        if [[ -n $found[1] ]]; then
            if [[ ${words[2]} == help ]]; then
                compadd -- "${found[@]}"
            else
                compadd -S '' -- "${found[@]}"
            fi
            return
        fi
    fi
    _towpath_clap "$@"
}
"#;

/// Behind the script of clap: files are offered where there are no such words.
const FISH: &str = r#"
function __fish_towpath_words
    set -l before (commandline -opc)
    set -l word (commandline -ct)
    if test (count $before) -lt 2; or string match -q -- '-*' $word
        return 1
    end
    set -l found (towpath complete -- $before[2] (string unescape -- "$word") 2>/dev/null)
    test (count $found) -gt 0; and printf '%s\n' $found
end
complete -c towpath -n '__fish_towpath_words >/dev/null' -f -a '(__fish_towpath_words)'
"#;

/// The whole script of a shell, of clap's.
pub(crate) fn script(shell: Shell, clap: &str) -> String {
    match shell {
        Shell::Bash => format!("{clap}{BASH}"),
        Shell::Zsh => {
            let renamed = clap.replacen(ZSH_CLAP, "\n_towpath_clap() {\n", 1);
            renamed.replacen(ZSH_END, &format!("{ZSH}{ZSH_END}"), 1)
        }
        Shell::Fish => format!("{clap}{FISH}"),
        _ => clap.to_owned(),
    }
}
