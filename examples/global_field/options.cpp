// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <shard/error.h>
#include <shard/json_file.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "dataset.h"

namespace global_field {
namespace {

using nlohmann::json;
using shard::check;
using shard::ConfigError;

/// Calls visit(name, member, description) for every option.
template <class AnyOptions, class Visitor>
void for_each_option(AnyOptions& o, Visitor&& visit) {
  visit("data", o.data, "folder of LinkeTurbidities.h5 and Altitude.h5");
  visit("output", o.output, "folder for the checkpoint, the trace, the table and the picture");
  visit("reduce", o.reduce, "mean over blocks of N x N points (1: full resolution, 2160 x 4320)");
  visit("ranks", o.ranks, "thread ranks (0: SHARD_RANKS, mpirun's count, else 2)");
  visit("split", o.split,
        "rows of every rank, e.g. 301,150,89; with --domain of every row of ranks (default: even)");
  visit("domain", o.domain, "ranks along rows x columns, e.g. 2x2 (default: rows only)");
  visit("width", o.width, "channels of the first level");
  visit("steps", o.steps, "training steps, one global sample each");
  visit("lr", o.learning_rate, "highest learning rate");
  visit("seed", o.seed, "seed of weights and order of samples");
  visit("precision", o.precision, "float32 or float64");
  visit("device", o.device, "cpu or cuda");
  visit("checkpoint-every", o.checkpoint_every, "steps between checkpoints (0: at the end only)");
  visit("resume", o.resume, "continue from the checkpoint in the output folder");
  visit("verify", o.verify, "afterwards compare one step with plain LibTorch, tensor by tensor");
  visit("quiet", o.quiet, "no progress lines");
  visit("break-halo", o.break_halo,
        "test only: convolutions ignore neighbours (--verify must fail)");
}

const std::vector<std::string> kTrainingKeys = {"reduce", "width", "steps",
                                                "lr",     "seed",  "precision"};

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  const Options options;
  for_each_option(options,
                  [&](const char* name, const auto&, const char*) { names.emplace_back(name); });
  return names;
}

json as_json(const Options& options) {
  json object = json::object();
  for_each_option(options,
                  [&](const char* name, const auto& value, const char*) { object[name] = value; });
  return object;
}

void read_json(Options& options, const std::string& path) {
  const json object = shard::io::read_json_file(path);
  shard::io::require_known_keys(object, option_names(), path);
  for_each_option(options, [&](const char* name, auto& value, const char*) {
    if (!object.contains(name)) return;
    const json before = value;
    const json& given = object[name];
    const bool fits = given.type() == before.type() ||
                      (before.is_number_float() && given.is_number()) ||
                      (before.is_number_integer() && given.is_number_integer());
    check<ConfigError>(fits, path, "key '", name, "': got ", given.dump(),
                       "; expected a value like ", before.dump(), ". Correct the file.");
    try {
      given.get_to(value);
    } catch (const json::exception&) {
      shard::raise<ConfigError>(path, "key '", name, "': got ", given.dump(),
                                "; expected a list of integers. Correct the file.");
    }
  });
}

template <class Value>
void add_flag_or_option(CLI::App& app, const std::string& flag, Value& value, const char* text) {
  if constexpr (std::is_same_v<Value, bool>) {
    app.add_flag(flag, value, text);
  } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
    app.add_option(flag, value, text)->delimiter(',');
  } else {
    app.add_option(flag, value, text)->capture_default_str();
  }
}

/// One line for a refused command line, with the nearest flag when one was misspelt.
[[noreturn]] void refuse(const CLI::ParseError& error, const CLI::App& app) {
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const auto extras = app.remaining();
  std::string guess = extras.empty() ? "" : shard::io::nearest_word(extras.front(), [&] {
    std::vector<std::string> flags = {"--config", "--help"};
    for (const std::string& name : option_names()) flags.push_back("--" + name);
    return flags;
  }());
  if (!extras.empty()) text = "unknown flag '" + extras.front() + "'";
  shard::raise<ConfigError>("options", text, ". ",
                            guess.empty() ? "See --help." : "Did you mean '" + guess + "'?");
}

/// Parses argv over `options`; returns the help text when asked for.
std::string parse_flags(int argc, char** argv, Options& options, std::string& config) {
  CLI::App app("Trains a U-Net on one global geophysical field that is cut over several ranks.");
  app.add_option("--config", config, "JSON file with the same keys; flags win");
  for_each_option(options, [&](const char* name, auto& value, const char* text) {
    add_flag_or_option(app, std::string("--") + name, value, text);
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::ParseError& error) {
    refuse(error, app);
  }
  return "";
}

void require(bool ok, const char* name, const std::string& got, const char* expected) {
  check<ConfigError>(ok, "options", "--", name, ": got ", got, "; expected ", expected, ".");
}

bool is_shape(const std::string& text) {
  const auto cross = text.find('x');
  const auto is_number = [](const std::string& digits) {
    return !digits.empty() && digits.size() < 5 && digits[0] != '0' &&
           digits.find_first_not_of("0123456789") == std::string::npos;
  };
  return cross != std::string::npos && is_number(text.substr(0, cross)) &&
         is_number(text.substr(cross + 1));
}

void validate(const Options& o) {
  require(o.domain.empty() || is_shape(o.domain), "domain", "'" + o.domain + "'",
          "ROWSxCOLUMNS, e.g. 2x2");
  const auto shape = o.domain_shape();
  require(o.ranks == 0 || shape.rows == 0 || o.ranks == shape.rows * shape.columns, "ranks",
          std::to_string(o.ranks), "as many as --domain has, or leave it out");
  const bool divides = o.reduce >= 1 && kRawRows % o.reduce == 0 && kRawRows / o.reduce >= 8;
  require(divides, "reduce", std::to_string(o.reduce), "a divisor of 2160 up to 270");
  require(o.ranks >= 0, "ranks", std::to_string(o.ranks), "0 or more");
  require(o.width >= 4 && o.width % 4 == 0, "width", std::to_string(o.width), "a multiple of 4");
  require(o.steps >= 0, "steps", std::to_string(o.steps), "0 or more");
  require(o.learning_rate > 0, "lr", std::to_string(o.learning_rate), "a positive number");
  require(o.precision == "float32" || o.precision == "float64", "precision",
          "'" + o.precision + "'", "float32 or float64");
  require(o.device == "cpu" || o.device == "cuda", "device", "'" + o.device + "'", "cpu or cuda");
  require(o.checkpoint_every >= 0, "checkpoint-every", std::to_string(o.checkpoint_every),
          "0 or more");
}

}  // namespace

Options::DomainShape Options::domain_shape() const {
  const auto cross = domain.find('x');
  if (cross == std::string::npos) return {};
  return {std::stoll(domain.substr(0, cross)), std::stoll(domain.substr(cross + 1))};
}

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine result;
  std::string config;
  result.help = parse_flags(argc, argv, result.options, config);
  if (!result.help.empty()) return result;
  if (!config.empty()) {
    result.options = Options();
    read_json(result.options, config);
    parse_flags(argc, argv, result.options, config);
  }
  validate(result.options);
  return result;
}

std::string to_json(const Options& options) { return as_json(options).dump(); }

void require_same_training(const Options& options, const std::string& checkpoint_json) {
  const json now = as_json(options);
  const json then = json::parse(checkpoint_json);
  for (const std::string& key : kTrainingKeys) {
    check<ConfigError>(now.at(key) == then.at(key), "resume", "--", key, ": got ",
                       now.at(key).dump(), "; the checkpoint was made with ", then.at(key).dump(),
                       ". Use that value, or start anew without --resume.");
  }
}

}  // namespace global_field
