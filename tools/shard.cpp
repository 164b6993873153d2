// SPDX-License-Identifier: Apache-2.0
// shard: what this build supports.
//   shard ops [--json]   every supported op: level, what may be sharded, conditions
//   shard info           build options, backends found, launcher detected
#include <ATen/Version.h>
#include <shard/build_info.h>
#include <shard/patch.h>
#include <shard/shard.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

namespace {

std::vector<shard::OpListing> sorted_ops() {
  auto ops = shard::list_ops();
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) {
    return std::tie(a.op, a.level) < std::tie(b.op, b.level);
  });
  return ops;
}

void print_ops() {
  std::cout << std::left;
  for (const auto& op : sorted_ops()) {
    std::cout << std::setw(44) << op.op << std::setw(10) << op.level << std::setw(16) << op.family
              << op.shards << (op.notes.empty() ? "" : "; ") << op.notes << '\n';
  }
}

void print_ops_json() {
  auto list = nlohmann::json::array();
  for (const auto& op : sorted_ops()) {
    list.push_back({{"op", op.op},
                    {"level", op.level},
                    {"family", op.family},
                    {"shards", op.shards},
                    {"notes", op.notes}});
  }
  std::cout << list.dump(2) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What this build of shardtensor supports"};
  app.require_subcommand(1);
  auto* ops =
      app.add_subcommand("ops", "every supported op: level, what may be sharded, conditions");
  bool json = false;
  ops->add_flag("--json", json, "as JSON");
  auto* info = app.add_subcommand("info", "build options, backends found, launcher detected");
  CLI11_PARSE(app, argc, argv);
  if (ops->parsed()) json ? print_ops_json() : print_ops();
  if (info->parsed()) std::cout << shard::describe_build();
  return 0;
}
