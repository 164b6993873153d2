// SPDX-License-Identifier: Apache-2.0
// Which aten ops are elementwise, and how they treat pending sums.
#include <shard/patch.h>

namespace shard {
namespace {

void add(PatchRegistrar& patch, Linearity linearity, std::initializer_list<const char*> ops) {
  for (const char* op : ops)
    patch.rule(std::string("aten::") + op, pointwise(linearity)).shards("any dim");
}

/// A number added in place to a pending sum is added once: by the first rank's contribution.
std::optional<Decision> add_number(const OpCall& call) {
  const auto& self = call.tensor(0);
  const bool is_sum = self.is_partial() && self.spec->placement().op() == ReduceOp::Sum;
  const bool is_avg = self.is_partial() && self.spec->placement().op() == ReduceOp::Avg;
  if (!is_sum && !is_avg) return pointwise()(call);
  Decision decision;
  decision.inputs.push_back(self.layout());
  decision.outputs.push_back(self.layout());
  if (is_sum && call.mesh().rank() != 0) {
    decision.local = [](c10::ArrayRef<c10::IValue> arguments) {
      return std::vector<c10::IValue>{arguments[0]};
    };
  }
  return decision;
}

/// Whether contributions may be converted instead of their sum: rounded or truncated ones, or those
/// that wrapped around, come to something else.
bool keeps_values(at::ScalarType from, at::ScalarType to) {
  return from == to ||
         (!at::isIntegralType(from, /*includeBool=*/true) && c10::promoteTypes(from, to) == to);
}

std::optional<Decision> convert(const OpCall& call) {  // _to_copy(self, *, dtype, ...)
  const auto from = call.tensor(0).tensor.scalar_type();
  const auto to = call.argument(1).isNone() ? from : call.argument(1).toScalarType();
  return pointwise(keeps_values(from, to) ? Linearity::Unary : Linearity::None)(call);
}

/// Into a pending sum, a value that is to be rounded first is the first rank's contribution.
std::optional<Decision> copy(const OpCall& call) {  // copy_(self, src, non_blocking)
  const auto& self = call.tensor(0);
  const bool is_exact =
      keeps_values(call.tensor(1).tensor.scalar_type(), self.tensor.scalar_type());
  if (is_exact || !self.is_partial()) return pointwise(Linearity::Additive)(call);
  Decision decision;
  decision.inputs = {self.layout(), Layout()};
  decision.outputs.push_back(self.layout());
  if (self.spec->placement().op() == ReduceOp::Sum && call.mesh().rank() != 0) {
    decision.local = [](c10::ArrayRef<c10::IValue> arguments) {
      return std::vector<c10::IValue>{arguments[0].toTensor().zero_()};
    };
  }
  return decision;
}

std::optional<Decision> is_in(const OpCall& call) {
  const Layout layout = call.tensor(0).is_partial() ? Layout() : call.tensor(0).layout();
  Decision decision;
  decision.inputs.push_back(layout);
  decision.inputs.emplace_back();
  decision.outputs.push_back(layout);
  return decision;
}

}  // namespace

SHARD_PATCH(pointwise) {
  for (const char* op : {"aten::add_.Scalar", "aten::sub_.Scalar"}) {
    patch.rule(op, add_number).shards("any dim");
  }
  patch.rule("aten::_to_copy", convert).shards("any dim");
  patch.rule("aten::copy_", copy).shards("any dim");
  add(patch, Linearity::Unary,
      {"clone", "neg", "neg_", "positive", "real", "conj_physical", "_conj_physical"});
  add(patch, Linearity::Additive,
      {"add.Tensor", "add_.Tensor", "add.out", "sub.Tensor", "sub_.Tensor", "sub.out"});
  add(patch, Linearity::Product,
      {"mul.Tensor", "mul_.Tensor", "mul.out", "mul.Scalar", "mul_.Scalar"});
  add(patch, Linearity::Quotient,
      {"div.Tensor", "div_.Tensor", "div.out", "div.Scalar", "div_.Scalar"});
  // Unary, out of place, in place and into `out`.
  for (const std::string op :
       {"abs",         "acos",        "acosh",    "asin",        "asinh",     "atan",
        "atanh",       "ceil",        "cos",      "cosh",        "deg2rad",   "digamma",
        "erf",         "erfc",        "erfinv",   "exp",         "exp2",      "expm1",
        "floor",       "frac",        "lgamma",   "log",         "log10",     "log1p",
        "log2",        "logical_not", "rad2deg",  "reciprocal",  "relu",      "round",
        "rsqrt",       "sgn",         "sigmoid",  "sign",        "silu",      "sin",
        "sinc",        "sinh",        "sqrt",     "tan",         "tanh",      "trunc",
        "hardsigmoid", "hardswish",   "mish",     "bitwise_not", "i0",        "nan_to_num",
        "gelu",        "elu",         "hardtanh", "leaky_relu",  "threshold", "clamp",
        "clamp_min",   "clamp_max",   "square"}) {
    for (const char* suffix : {"", "_", ".out"}) patch.rule("aten::" + op + suffix, pointwise());
  }
  // Binary, by overload.
  for (const std::string op : {"eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod",
                               "bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide"}) {
    for (const char* kind : {".Tensor", ".Scalar", ".Tensor_out", ".Scalar_out"}) {
      patch.rule("aten::" + op + kind, pointwise());
    }
    patch.rule("aten::" + op + "_.Tensor", pointwise());
    patch.rule("aten::" + op + "_.Scalar", pointwise());
  }
  for (const std::string op :
       {"maximum", "minimum", "fmax", "fmin", "atan2", "logical_and", "logical_or", "logical_xor",
        "hypot", "copysign.Tensor", "logaddexp", "logaddexp2"}) {
    patch.rule("aten::" + op, pointwise());
  }
  for (const char* op : {"logical_and_", "logical_or_", "logical_xor_", "atan2_"}) {
    patch.rule(std::string("aten::") + op, pointwise());
  }
  add(patch, Linearity::None,
      {"add.Scalar",
       "sub.Scalar",
       "rsub.Scalar",
       "rsub.Tensor",
       "pow.Tensor_Scalar",
       "pow.Tensor_Tensor",
       "pow.Scalar",
       "pow_.Scalar",
       "pow_.Tensor",
       "div.Tensor_mode",
       "div_.Tensor_mode",
       "div.Scalar_mode",
       "xlogy.Tensor",
       "xlogy.Scalar_Other",
       "clamp.Tensor",
       "clamp_min.Tensor",
       "clamp_max.Tensor",
       "clamp_.Tensor",
       "clamp_min_.Tensor",
       "clamp_max_.Tensor",
       "where.self",
       "masked_fill.Scalar",
       "masked_fill.Tensor",
       "masked_fill_.Scalar",
       "masked_fill_.Tensor",
       "lerp.Scalar",
       "lerp.Tensor",
       "lerp_.Scalar",
       "lerp_.Tensor",
       "addcmul",
       "addcmul_",
       "addcdiv",
       "addcdiv_",
       "isnan",
       "isinf",
       "isfinite",
       "isposinf",
       "isneginf",
       "signbit",
       "softplus",
       "softshrink",
       "hardshrink",
       "log_sigmoid",
       "log_sigmoid_forward",
       "fill_.Scalar",
       "fill_.Tensor",
       "fill.Scalar",
       "zero_",
       "complex",
       "polar",
       "polygamma",
       "angle",
       "copysign.Scalar",
       "floor_divide",
       "frexp.Tensor",
       "round.decimals",
       "round_.decimals",
       "celu",
       "celu_",
       "prelu",
       "_prelu_kernel",
       "heaviside",
       "ldexp.Tensor",
       "nextafter",
       "remainder.Scalar_Tensor"});
  for (const std::string op : {"__lshift__", "__rshift__", "__ilshift__", "__irshift__",
                               "bitwise_left_shift", "bitwise_right_shift"}) {
    const bool has_overloads = op[0] == '_';
    for (const char* kind : {".Tensor", has_overloads ? ".Scalar" : ".Tensor_Scalar"}) {
      patch.rule("aten::" + op + kind, pointwise());
    }
  }
  // The elementwise parts of LibTorch's backward formulas.
  add(patch, Linearity::None, {"threshold_backward",   "gelu_backward",
                               "elu_backward",         "silu_backward",
                               "mish_backward",        "sigmoid_backward",
                               "tanh_backward",        "hardtanh_backward",
                               "hardsigmoid_backward", "hardswish_backward",
                               "leaky_relu_backward",  "softplus_backward",
                               "softshrink_backward",  "hardshrink_backward",
                               "log_sigmoid_backward", "logit",
                               "logit_backward",       "_prelu_kernel_backward",
                               "mse_loss_backward",    "smooth_l1_loss_backward",
                               "huber_loss_backward",  "glu_jvp"});
  // (elements, test_elements): the first is elementwise, all of the second are looked at.
  patch.rule("aten::isin.Tensor_Tensor", is_in).shards("any dim of elements");
  patch.rule("aten::isin.Tensor_Scalar", pointwise()).shards("any dim");
}

}  // namespace shard
