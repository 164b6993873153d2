// SPDX-License-Identifier: Apache-2.0
// From options to the model and the data's options.
#pragma once

#include "dataset.h"
#include "options.h"
#include "unet.h"

namespace global_field {

inline UNet make_model(const Options& options) {
  UNet model(kInputChannels, options.width, kBaseChannel);
  model->to(torch::Device(options.device), options.dtype());
  return model;
}

inline FieldOptions field_options(const Options& options) {
  return {options.data, options.reduce, options.dtype(), torch::Device(options.device)};
}

}  // namespace global_field
