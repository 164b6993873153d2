#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy on the sources of a configured build folder:   scripts/tidy.sh BUILD [source...]      (default: all)
# JOBS=n runs n at once. SHARD_TIDY_SECONDS=n: after n seconds no further file is begun, and those left out are named.
#
# gcc's precompiled headers mean nothing to clang. A file is read without; if it relies on src/pch.h for some #include
# it is read once more with clang's own precompiled src/pch.h (slower: clang-tidy then looks at all of it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$(realpath "$1")
export build
shift
mkdir -p "$build/tidy"
sed -E 's/ -Winvalid-pch| -include [^ ]*cmake_pch\.hxx| -Werror| -Wno-maybe-uninitialized//g' \
  "$build/compile_commands.json" > "$build/tidy/compile_commands.json"

sources=("$@")
if (( $# == 0 )); then
  mapfile -t sources < <(git ls-files --cached --others --exclude-standard \
    'src/*.cpp' 'patches/*.cpp' 'tests/*.cpp' 'bench/*.cpp' 'examples/*.cpp' 'tools/*.cpp')
fi
# Only files that this build compiles (not the stub of a backend that is there, nor a user's project).
compiled=()
for source in "${sources[@]}"; do
  if grep -qF "\"$PWD/$source\"" "$build/compile_commands.json"; then compiled+=("$source"); fi
done
echo "[tidy] ${#compiled[@]} files ..." >&2
(( ${#compiled[@]} )) || exit 0

# The compiler that belongs to clang-tidy, with the flags of src/pch.cpp.
precompile() {
  local clang flags
  clang=$(dirname "$(realpath "$(command -v clang-tidy)")")/clang++
  [[ -x $clang ]] || clang=$(command -v clang++ || command -v clang++-14) || return 0
  flags=$(sed -n 's/.*"command": "\(.*\) -o .*src\/pch\.cpp".*/\1/p' "$build/tidy/compile_commands.json" | head -n 1)
  flags=" ${flags#*c++ }"
  # shellcheck disable=SC2086  # a list of flags
  $clang $flags -x c++-header src/pch.h -o "$build/tidy/pch.pch"
}
precompile

check() { clang-tidy --quiet -p "$build/tidy" "$@" 2>&1; }

# One line a file as it goes; the findings of a file only when there are any.
tidy_one() {
  local output
  if (( $(date +%s) > deadline )); then echo "[tidy] left out $1"; return 0; fi
  output=$(check "$1") && { echo "[tidy] ok $1"; return 0; }
  if [[ -f $build/tidy/pch.pch && $output == *clang-diagnostic-error* ]]; then
    output=$(check --extra-arg-before=-include-pch "--extra-arg-before=$build/tidy/pch.pch" "$1") &&
      { echo "[tidy] ok $1"; return 0; }
  fi
  echo "[tidy] FAILED $1"
  grep -vE "^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^Suppressed|^Use -header-filter" <<< "$output"
  return 1
}
export -f check tidy_one
export deadline=$(( $(date +%s) + ${SHARD_TIDY_SECONDS:-1000000} ))
printf '%s\0' "${compiled[@]}" | xargs -0 -n 1 -P "${JOBS:-2}" bash -c 'tidy_one "$0"'
