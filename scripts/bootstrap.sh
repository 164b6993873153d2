#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing to build and run shardtensor: Debian packages, LibTorch (into .deps/libtorch) and the sample
# data (into data/). With everything there it only looks, needs no network and takes a fraction of a second.
#
#   scripts/bootstrap.sh [--ci] [--cuda] [--python]
#     --ci: clang-format and clang-tidy too
#     --cuda: what LibTorch's CUDA library loads, too (so with a GPU anyway)
#     --python: the same, LibTorch's Python package and what its tests import, into .deps/python
#
# As root it installs packages; otherwise it prints the command for root and exits 1. SHARD_LIBTORCH=DIR uses an
# existing LibTorch. Downloads are kept in ${XDG_CACHE_HOME:-~/.cache}/shardtensor, shared by all clones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly torch_version=2.11.0
readonly pvlib_version=0.16.1
readonly cache="${XDG_CACHE_HOME:-$HOME/.cache}/shardtensor"
readonly libtorch=.deps/libtorch
packages=(g++ make cmake ninja-build ccache git ca-certificates unzip openmpi-bin libopenmpi-dev
  nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libhdf5-dev libpng-dev python3)

wants_cuda=0
wants_python=0
if compgen -G "/dev/nvidia[0-9]*" >/dev/null; then wants_cuda=1; fi
for argument in "$@"; do
  case "$argument" in
    --ci) packages+=(clang-format clang-tidy) ;;
    --cuda) wants_cuda=1 ;;
    --python) wants_cuda=1; wants_python=1; packages+=(python3-dev) ;;
    *) echo "[bootstrap] got '$argument'; expected nothing, --ci, --cuda or --python" >&2; exit 2 ;;
  esac
done

trap 'rm -rf .deps/unpacking.$$ data/unpacking.$$' EXIT

say() { echo "[bootstrap] $*" >&2; }
fail() { say "$*"; exit 1; }

# --- Debian packages -----------------------------------------------------------------------------

find_pip() {
  if python3 -m pip --version >/dev/null 2>&1; then
    echo "python3 -m pip"
  elif command -v pip3 >/dev/null; then
    echo pip3
  fi
}

missing_packages() {
  local installed
  installed=" $(dpkg-query -W -f='${db:Status-Status}/${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ "$installed" == *" installed/$package "* ]] || echo "$package"
  done
  # Only downloads need pip, and any pip does.
  if needs_download && [[ -z "$(find_pip)" ]]; then echo python3-pip; fi
}

install_packages() {
  command -v dpkg-query >/dev/null || { say "not a Debian system: needed are ${packages[*]}"; return; }
  local missing
  mapfile -t missing < <(missing_packages)
  (( ${#missing[@]} )) || return 0
  local install="apt-get install -y --no-install-recommends ${missing[*]}"
  (( EUID == 0 )) || fail "packages are missing; run as root: apt-get update && $install"
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2 || fail "apt-get update failed (network?); then run: $install"
  $install -qq >&2 || fail "'$install' failed; see above"
}

# --- Python wheels as archives ------------------------------------------------------------------

# fetch_wheel NAME VERSION SIZE: prints the path of the wheel in the cache, downloading it first when it is not there.
# The wheel is chosen for this machine, not for the Python that happens to be installed.
fetch_wheel() {
  local name=$1 version=$2 size=$3 pip scratch wheel
  wheel=$(compgen -G "$cache/${name//-/_}-$version-*.whl" | head -n 1) || true
  if [[ -z "$wheel" ]]; then
    pip=$(find_pip)
    say "downloading $name $version ($size) ..."
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/download.XXXXXX")
    $pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary=:all: \
      --implementation cp --python-version 3.11 --abi cp311 --abi none \
      --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_25_$(uname -m)" \
      --platform "manylinux2014_$(uname -m)" --platform any \
      --dest "$scratch" "$name==$version" >&2 \
      || { rm -rf "$scratch"; fail "cannot download $name $version: see above (network? disk?)"; }
    wheel=$(compgen -G "$scratch/*.whl")
    mv -f "$wheel" "$cache/"
    rm -rf "$scratch"
    wheel="$cache/${wheel##*/}"
  fi
  echo "$wheel"
}

# unpack WHEEL FOLDER PATTERN...: extracts the matching files; a damaged wheel leaves the cache.
unpack() {
  local wheel=$1 folder=$2
  shift 2
  unzip -q -o "$wheel" "$@" -d "$folder" >&2 \
    || { rm -f "$wheel"; fail "cannot unpack ${wheel##*/} (disk full, or damaged: it was removed); run this again"; }
}

# unpack_rest WHEEL FOLDER: extracts what is not there yet.
unpack_rest() {
  unzip -q -n "$1" -d "$2" >&2 || fail "cannot unpack ${1##*/} (disk full?)"
}

# --- LibTorch -----------------------------------------------------------------------------------

has_libtorch() {
  [[ -f $libtorch/torch/lib/libtorch_cpu.so ]] &&
    grep -q "__version__ = '$torch_version\b" $libtorch/torch/version.py 2>/dev/null
}

# LibTorch's CPU library is built with CUDA and loads two small CUDA libraries even where there is no GPU.
lacks_cuda_runtime() {
  ldd $libtorch/torch/lib/libtorch_cpu.so | grep -qE "lib(cudart|cupti)\S* => not found"
}

install_libtorch() {
  local wheel scratch=.deps/unpacking.$$
  if ! has_libtorch; then
    wheel=$(fetch_wheel torch $torch_version "530 MB")
    say "unpacking LibTorch $torch_version into $libtorch (1 GB) ..."
    mkdir -p "$scratch"
    unpack "$wheel" "$scratch" "torch/include/*" "torch/lib/*" "torch/share/*" torch/version.py
    mkdir -p $libtorch
    rm -rf $libtorch/torch
    mv "$scratch/torch" $libtorch/torch
  fi
  if lacks_cuda_runtime; then
    wheel=$(fetch_wheel nvidia-cuda-runtime 13.0.96 "2 MB")
    unpack "$wheel" $libtorch "nvidia/cu13/lib/libcudart.so*"
    wheel=$(fetch_wheel nvidia-cuda-cupti 13.0.85 "11 MB")
    unpack "$wheel" $libtorch "nvidia/cu13/lib/libcupti.so*"
  fi
}

# Library name, and the package and version that LibTorch asks for. Libraries of an installed CUDA toolkit that the
# loader finds are left to it.
readonly cuda_packages="
libcublas       nvidia-cublas          13.1.0.3
libcublasLt     nvidia-cublas          13.1.0.3
libcudnn        nvidia-cudnn-cu13      9.19.0.56
libcufft        nvidia-cufft           12.0.0.61
libcufile       nvidia-cufile          1.15.1.6
libcurand       nvidia-curand          10.4.0.35
libcusolver     nvidia-cusolver        12.0.4.66
libcusparse     nvidia-cusparse        12.6.3.3
libcusparseLt   nvidia-cusparselt-cu13 0.8.0
libnccl         nvidia-nccl-cu13       2.28.9
libnvJitLink    nvidia-nvjitlink       13.0.88
libnvshmem_host nvidia-nvshmem-cu13    3.4.5"

missing_cuda_libraries() {
  ldd $libtorch/torch/lib/libtorch_cuda.so $libtorch/torch/lib/libtorch_cuda_linalg.so |
    sed -n 's/^\s*\(lib[A-Za-z_]*\)\S* => not found/\1/p' | sort -u
}

install_cuda_libraries() {
  (( wants_cuda )) && [[ -f $libtorch/torch/lib/libtorch_cuda.so ]] || return 0
  local library name package version wheel
  for library in $(missing_cuda_libraries); do
    while read -r name package version; do
      [[ "$name" == "$library" ]] || continue
      wheel=$(fetch_wheel "$package" "$version" "for the GPU")
      unpack "$wheel" $libtorch "nvidia/*/lib/*.so*"
    done <<<"$cuda_packages"
  done
  [[ -z "$(missing_cuda_libraries)" ]] ||
    say "LibTorch's CUDA library lacks $(missing_cuda_libraries | tr '\n' ' '): no GPU can be used"
}

# --- LibTorch for Python -------------------------------------------------------------------------

# The wheel of LibTorch is the Python package torch; importing it loads all CUDA libraries, even without a GPU.
readonly python_version=3.11
readonly python_packages=.deps/python

has_python_packages() {
  [[ -f $libtorch/torch/__init__.py ]] && cmp -s scripts/python_packages.txt $python_packages/installed.txt
}

install_python_packages() {
  (( wants_python )) && ! has_python_packages || return 0
  local wheel pip
  if ! python3 -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$python_version')"; then
    say "python3 is $(python3 --version); LibTorch's wheel is for $python_version: no Python module will be built"
    return 0
  fi
  wheel=$(fetch_wheel torch $torch_version "530 MB")
  say "unpacking LibTorch's Python package and installing what its tests import ..."
  # What is there already stays: a newer header would mean a full build.
  unpack_rest "$wheel" $libtorch
  pip=$(find_pip)
  $pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
    --target $python_packages -r scripts/python_packages.txt >&2 || fail "pip failed; see above (network? disk?)"
  cp scripts/python_packages.txt $python_packages/installed.txt
}

check_own_libtorch() {
  for folder in "$SHARD_LIBTORCH" "$SHARD_LIBTORCH/torch" "$SHARD_LIBTORCH/libtorch"; do
    [[ -f $folder/lib/libtorch_cpu.so ]] && return
  done
  fail "SHARD_LIBTORCH=$SHARD_LIBTORCH holds no lib/libtorch_cpu.so; unset it to let this script install LibTorch"
}

# --- Sample data --------------------------------------------------------------------------------

readonly data_files=(LinkeTurbidities.h5 Altitude.h5)

has_data() {
  for file in "${data_files[@]}"; do [[ -f data/$file ]] || return 1; done
}

install_data() {
  has_data && return
  local wheel scratch=data/unpacking.$$
  wheel=$(fetch_wheel pvlib $pvlib_version "19 MB")
  say "unpacking the sample data into data/ ..."
  mkdir -p "$scratch"
  unpack "$wheel" "$scratch" "${data_files[@]/#/pvlib/data/}"
  for file in "${data_files[@]}"; do mv -f "$scratch/pvlib/data/$file" "data/$file"; done
}

needs_download() {
  if [[ -z "${SHARD_LIBTORCH:-}" ]]; then
    has_libtorch || return 0
    (( ! wants_python )) || has_python_packages || return 0
  fi
  ! has_data
}

install_packages
if [[ -n "${SHARD_LIBTORCH:-}" ]]; then check_own_libtorch; else
  install_libtorch
  install_cuda_libraries
  install_python_packages
fi
install_data
