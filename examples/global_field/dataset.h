// SPDX-License-Identifier: Apache-2.0
// The data: monthly Linke turbidity of the whole globe and the altitude, read band by band. A
// GlobalField holds some rows of the (reduced) globe as plain tensors and makes samples of them;
// whose rows they are is the caller's business.
#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace global_field {

inline constexpr int64_t kRawRows = 2160;  ///< from the north pole southwards
inline constexpr int64_t kRawColumns = 4320;
inline constexpr int64_t kMonths = 12;
inline constexpr int64_t kInputChannels =
    6;  ///< months m-2, m-1, m; altitude; sine and cosine of latitude
inline constexpr int64_t kBaseChannel = 2;  ///< month m, which the model corrects
inline constexpr double kOffset = 2.8;      ///< model units: (turbidity - kOffset) / kUnit
inline constexpr double kUnit = 0.9;

/// Targets, counted from 0 (January).
inline constexpr std::array<int64_t, 3> kHeldOutMonths = {1, 5, 9};
inline constexpr std::array<int64_t, 9> kTrainingMonths = {0, 2, 3, 4, 6, 7, 8, 10, 11};

struct FieldOptions {
  std::string folder = "data";  ///< holds LinkeTurbidities.h5 and Altitude.h5
  int64_t reduce = 4;           ///< means over blocks of reduce x reduce points; divides kRawRows
  torch::Dtype dtype = torch::kFloat32;
  torch::Device device = torch::kCPU;
};

/// Input (1, kInputChannels, rows, columns) and target (1, 1, rows, columns), in model units.
struct Sample {
  torch::Tensor input;
  torch::Tensor target;
};

/// Rows or columns [begin, end) of the reduced globe; may be empty.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

class GlobalField {
 public:
  /// Reads these rows of the reduced globe and keeps these columns. Errors: shard::FileError.
  GlobalField(const FieldOptions& options, Span rows, Span columns);
  /// The whole globe.
  explicit GlobalField(const FieldOptions& options)
      : GlobalField(options, {0, rows(options)}, {0, columns(options)}) {}

  static int64_t rows(const FieldOptions& options) { return kRawRows / options.reduce; }
  static int64_t columns(const FieldOptions& options) { return kRawColumns / options.reduce; }

  /// Predicts `target_month` from the three months before it (the calendar wraps around).
  Sample sample(int64_t target_month) const;
  /// One month, or the mean of the training months, (1, 1, rows, columns) in model units.
  torch::Tensor month(int64_t month) const;
  torch::Tensor training_mean() const;

 private:
  torch::Tensor turbidity_;  // (12, rows, columns), model units
  torch::Tensor geography_;  // (3, rows, columns): altitude, sine and cosine of latitude
};

}  // namespace global_field
