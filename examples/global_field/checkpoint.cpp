// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.h"

#include <shard/atomic_file.h>
#include <shard/error.h>
#include <shard/json_file.h>
#include <shard/launch.h>
#include <torch/serialize/archive.h>
#include <torch/torch.h>

#include <sstream>

namespace global_field {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

template <class Value>
torch::Tensor to_tensor(const std::vector<Value>& values) {
  return torch::tensor(values, c10::CppTypeToScalarType<Value>::value);
}

template <class Value>
std::vector<Value> to_vector(const torch::Tensor& tensor) {
  const Value* data = tensor.const_data_ptr<Value>();
  return {data, data + tensor.numel()};
}

std::string to_bytes(const Options& options, Training& training) {
  OutputArchive archive, model, optimizer;
  training.model->save(model);
  training.optimizer.save(optimizer);
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  archive.write("losses", to_tensor(training.losses), /*is_buffer=*/true);
  archive.write("order", to_tensor(training.order), /*is_buffer=*/true);
  archive.write("generator", shard::default_generator().get_state(), /*is_buffer=*/true);
  archive.write("options", c10::IValue(to_json(options)));
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

void from_bytes(const std::string& bytes, const Options& options, Training& training) {
  InputArchive archive, model, optimizer;
  archive.load_from(bytes.data(), bytes.size());
  c10::IValue made_with;
  archive.read("options", made_with);
  require_same_training(options, made_with.toStringRef());
  torch::Tensor losses, order, generator;
  archive.read("model", model);
  archive.read("optimizer", optimizer);
  archive.read("losses", losses, /*is_buffer=*/true);
  archive.read("order", order, /*is_buffer=*/true);
  archive.read("generator", generator, /*is_buffer=*/true);
  training.model->load(model);
  training.optimizer.load(optimizer);
  training.losses = to_vector<double>(losses);
  training.order = to_vector<int64_t>(order);
  shard::default_generator().set_state(generator);
}

}  // namespace

void save_checkpoint(const Options& options, Training& training, const shard::Communicator& comm) {
  if (comm.rank() == 0) {
    shard::io::write_file_atomically(options.checkpoint_path(), to_bytes(options, training));
  }
  comm.barrier();
}

void load_checkpoint(const Options& options, Training& training, const shard::Communicator& comm) {
  const std::string path = options.checkpoint_path();
  const std::string mine = comm.rank() == 0 ? shard::io::read_text_file(path) : "";
  const std::string bytes = comm.all_gather_bytes(mine).front();
  try {
    from_bytes(bytes, options, training);
  } catch (const shard::Error&) {
    throw;
  } catch (const std::exception&) {
    shard::raise<shard::FileError>("resume", "'", path,
                                   "' is damaged or no checkpoint of this program: got ",
                                   bytes.size(), " bytes. Start anew without --resume.");
  }
}

}  // namespace global_field
