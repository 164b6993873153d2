#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-format over all C++ sources under version control (and new ones):   scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' | xargs -r ls 2>/dev/null)
(( ${#files[@]} )) || exit 0
if [[ "${1:-}" == --check ]]; then
  clang-format --dry-run --Werror "${files[@]}" || { echo "[format] run 'make format'" >&2; exit 1; }
else
  clang-format -i "${files[@]}"
fi
