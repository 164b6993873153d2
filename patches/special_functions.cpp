// SPDX-License-Identifier: Apache-2.0
// Elementwise special functions: Bessel, orthogonal polynomials, gamma and normal distribution.
#include <shard/patch.h>

#include <string>

namespace shard {

SHARD_PATCH(special_functions) {
  const auto add = [&](const std::string& op) {
    patch.rule("aten::" + op, pointwise()).shards("any dim");
  };
  for (const char* op :
       {"airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "entr", "erfcx", "i0e", "i1",
        "i1e", "log_ndtr", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
        "modified_bessel_k1", "ndtri", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
        "spherical_bessel_j0"}) {
    add(c10::str("special_", op));
  }
  for (const char* kind : {"t", "u", "v", "w"}) {
    for (const char* overload : {"", ".x_scalar", ".n_scalar"}) {
      add(c10::str("special_chebyshev_polynomial_", kind, overload));
      add(c10::str("special_shifted_chebyshev_polynomial_", kind, overload));
    }
  }
  for (const char* op : {"hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
                         "legendre_polynomial_p"}) {
    for (const char* overload : {"", ".x_scalar", ".n_scalar"}) {
      add(c10::str("special_", op, overload));
    }
  }
  for (const char* op : {"xlog1py", "zeta"}) {
    for (const char* overload : {"", ".self_scalar", ".other_scalar"}) {
      add(c10::str("special_", op, overload));
    }
  }
  for (const char* op : {"igamma", "igammac", "mvlgamma"}) add(op);
}

}  // namespace shard
