// SPDX-License-Identifier: Apache-2.0
// mpi.h without the C++ bindings that MPI dropped long ago and some libraries still bring.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
